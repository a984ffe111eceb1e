//! Pairs: the thing and its yardstick, one right after the other, many times.

use std::fmt;
use std::time::Duration;

/// Medians over all pairs.
#[derive(Debug, Clone, Copy)]
pub struct Medians {
    /// Of the ratios.
    pub ratio: f64,
    /// Of the thing.
    pub thing: Duration,
    /// Of the yardstick.
    pub yardstick: Duration,
}

impl fmt::Display for Medians {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        write!(f, "{:.2}  ({:.2} ms / {:.2} ms)", self.ratio, ms(self.thing), ms(self.yardstick))
    }
}

/// Pairs that are run first and not counted: caches fill, programs are read from disk.
pub const WARM_UP: usize = 3;

/// Runs `count` pairs; each side is handed the number of the pair and returns its time. Who is first alternates.
pub fn measure(
    count: usize,
    mut thing: impl FnMut(usize) -> Duration,
    mut yardstick: impl FnMut(usize) -> Duration,
) -> Medians {
    let mut pairs = Vec::new();
    for n in 0..count + WARM_UP {
        pairs.push(if n % 2 == 0 {
            let thing = thing(n);
            (thing, yardstick(n))
        } else {
            let yardstick = yardstick(n);
            (thing(n), yardstick)
        });
    }
    let pairs = &pairs[WARM_UP..];
    let ratio = |(thing, yardstick): &(Duration, Duration)| thing.as_secs_f64() / yardstick.as_secs_f64();
    Medians {
        ratio: median(pairs.iter().map(ratio)),
        thing: Duration::from_secs_f64(median(pairs.iter().map(|(thing, _)| thing.as_secs_f64()))),
        yardstick: Duration::from_secs_f64(median(pairs.iter().map(|(_, yardstick)| yardstick.as_secs_f64()))),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
