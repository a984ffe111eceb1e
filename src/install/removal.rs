//! Taking everything away: configuration, kubeconfig, and last the executable.

use super::directory::Applied;
use super::{Options, binary, cache, directory, kubeconfig, plan};
use crate::error::{Error, Result};
use crate::sys::{clock, file};
use std::path::Path;
use std::time::Duration;

/// How long a removal waits for a plugin that runs: longer than one whose agent is gone goes on asking for it.
const LONGEST: Duration = Duration::from_secs(15);
/// Between looks whether one does.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether a removal acts or only tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Do it.
    Real,
    /// Only list what would be done.
    Dry,
}

/// What a removal did (or would do), in order, and what went wrong on the way.
#[derive(Debug, Default)]
pub struct Removal {
    /// One line per thing done or left in place with the reason, for people.
    pub steps: Vec<String>,
    /// Failures; the removal went on past each.
    pub failures: Vec<Error>,
}

/// Takes our entry out of the configuration (bringing a converted `.conf` back), removes the kubeconfig, and then the
/// executable unless a sandbox still needs it. Needs no API and no agent; a second call does nothing. The
/// keeper must be stopped.
pub fn uninstall(options: &Options, run: Run) -> Removal {
    let mut removal = Removal::default();
    if let Err(e) = configuration(options, run, &mut removal) {
        removal.failures.push(e);
    }
    removal.file(&options.run_dir.join(kubeconfig::FILE), run);
    let executable = binary::path(options);
    let needed_by = match &removal.failures[..] {
        [] => who_needs(&executable, options, run),
        // A configuration may still name it.
        _ => Some("the removal was not complete".to_owned()),
    };
    match needed_by {
        Some(who) if executable.exists() => removal.steps.push(format!("keep {}: {who}", executable.display())),
        Some(_) => {}
        None => removal.file(&executable, run),
    }
    if run == Run::Real {
        let swept = [directory::sweep(options), binary::sweep(options), kubeconfig::sweep(&options.run_dir)];
        removal.failures.extend(swept.into_iter().filter_map(Result::err));
    }
    removal
}

/// Why the executable must stay; `None`: nobody needs it, and nobody has begun to, since the configuration no longer names
/// it.
fn who_needs(executable: &Path, options: &Options, run: Run) -> Option<String> {
    let began = clock::now();
    let mut quiet_since = began;
    loop {
        let needed = cache::who_needs_the_plugin(&options.host_root);
        if needed.is_some() || !executable.exists() {
            return needed;
        }
        let running = cache::who_runs_the_plugin(&options.host_root, executable);
        let now = clock::now();
        if running.is_some() {
            quiet_since = now;
        }
        let enough = now - quiet_since >= options.settle && running.is_none();
        if run == Run::Dry || enough || now - began >= LONGEST {
            return running;
        }
        clock::sleep(PAUSE);
    }
}

fn configuration(options: &Options, run: Run, removal: &mut Removal) -> Result<()> {
    const TRIES: usize = 10;
    directory::expect(options)?;
    for _ in 0..TRIES {
        let listing = directory::read(options)?;
        let steps = plan::remove(&listing, options);
        let mut left = steps.iter();
        let preceded = left.find_map(|step| {
            let applied = match run {
                Run::Real => directory::apply(std::slice::from_ref(step), &listing, options),
                Run::Dry => Ok(Applied::Done),
            };
            if let Ok(Applied::Done) = applied {
                removal.steps.push(directory::describe(step, options));
                return None;
            }
            Some(applied)
        });
        if preceded.transpose()?.is_none() {
            removal.steps.extend(directory::kept(&steps, &listing, options));
            removal.failures.extend(plan::unclear(&listing).into_iter().map(Error::new));
            return Ok(());
        }
    }
    let dir = options.net_dir.display();
    Err(Error::new(format!("{dir}: another program keeps rewriting the configuration; stop it and try again")))
}

impl Removal {
    fn file(&mut self, path: &Path, run: Run) {
        let there = match run {
            Run::Real => file::remove(path),
            Run::Dry => Ok(path.symlink_metadata().is_ok()),
        };
        match there {
            Ok(true) => self.steps.push(format!("remove {}", path.display())),
            Ok(false) => {}
            Err(e) => self.failures.push(e),
        }
    }
}
