//! Aligned columns for people, coloured only on a terminal.

use std::fmt::Write as _;

/// How a cell is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// Headings and what is less important.
    Faint,
    /// All is well.
    Good,
    /// On its way, or worth a look.
    Doubtful,
    /// Not as it should be.
    Bad,
}

impl Tone {
    /// Its SGR parameter (ECMA-48, "Select Graphic Rendition").
    fn sgr(self) -> Option<u8> {
        match self {
            Tone::Plain => None,
            Tone::Faint => Some(2),
            Tone::Good => Some(32),
            Tone::Doubtful => Some(33),
            Tone::Bad => Some(31),
        }
    }
}

/// A piece of text.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    tone: Tone,
}

/// A cell. What is no text for a terminal (control characters) becomes a blank: other programs' words end up here.
pub fn cell(text: impl AsRef<str>, tone: Tone) -> Cell {
    let text = text.as_ref().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Cell { text, tone }
}

/// Whether colours are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// On a terminal.
    On,
    /// Anywhere else, and with `NO_COLOR`.
    Off,
}

/// Lines of cells, the columns aligned, two blanks between them, each line after `indent`.
pub fn columns(indent: &str, rows: &[Vec<Cell>], colour: Colour) -> String {
    let mut widths = Vec::new();
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            let width = cell.text.chars().count();
            match widths.get_mut(at) {
                Some(widest) => *widest = width.max(*widest),
                None => widths.push(width),
            }
        }
    }
    let mut text = String::new();
    for row in rows {
        text += indent;
        // Nothing is padded that nothing follows.
        let last = row.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or_default();
        for (at, (cell, width)) in row.iter().zip(&widths).take(last + 1).enumerate() {
            text += &painted(&cell.text, cell.tone, colour);
            if at < last {
                let _ = write!(text, "{:1$}", "", width - cell.text.chars().count() + 2);
            }
        }
        text.push('\n');
    }
    text
}

/// A text in its colour.
pub fn painted(text: &str, tone: Tone, colour: Colour) -> String {
    match tone.sgr() {
        Some(sgr) if colour == Colour::On && !text.is_empty() => format!("\x1b[{sgr}m{text}\x1b[0m"),
        _ => text.to_owned(),
    }
}

/// A time as people say it, in the two largest units: `42s`, `3m12s`, `2h05m`, `3d04h`.
pub fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (minutes, hours, days) {
        (0, ..) => format!("{seconds}s"),
        (_, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (_, _, 0) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |texts: &[&str]| texts.iter().map(|text| cell(text, Tone::Plain)).collect::<Vec<_>>();
        let rows = [row(&["a", "bb", "c"]), row(&["größe", "", "x\x1b[31m\ny"]), row(&["d", "e", ""]), row(&[])];
        assert_eq!(columns("> ", &rows, Colour::Off), "> a      bb  c\n> größe      x [31m y\n> d      e\n> \n");
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let rows = [
            vec![cell("ok", Tone::Good), cell("x", Tone::Plain)],
            vec![cell("lost", Tone::Bad), cell("y", Tone::Plain)],
        ];
        assert_eq!(columns("", &rows, Colour::On), "\x1b[32mok\x1b[0m    x\n\x1b[31mlost\x1b[0m  y\n");
    }

    #[test]
    fn durations() {
        for (seconds, want) in
            [(0, "0s"), (59, "59s"), (60, "1m00s"), (3599, "59m59s"), (3600, "1h00m"), (90_000, "1d01h")]
        {
            assert_eq!(duration(seconds), want);
        }
    }
}
