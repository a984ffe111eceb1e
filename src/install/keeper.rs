//! The thread that installs, watches and repairs.

use super::binary::{self, Binary};
use super::conflict::{self, Conflict};
use super::directory::{self, Applied};
use super::plan::{self, Place, State};
use super::{Options, kubeconfig};
use crate::error::Result;
use crate::sys::watch::{self, Watch};
use crate::sys::{clock, thread};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A look at everything, whatever was reported.
const INTERVAL: Duration = Duration::from_secs(60);

/// How often directories are looked at that cannot be watched.
const POLL: Duration = Duration::from_secs(5);

/// Events that come together are taken together: other writers often write a file in several steps.
const SETTLE: Duration = Duration::from_millis(100);

/// After a failure.
const RETRY: Duration = Duration::from_secs(5);

/// When a file may be in the middle of being written.
const UNSETTLED: Duration = Duration::from_millis(500);

/// For how long that may go on unmentioned.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a pass ended, as `istio_cni_installs_total{result}` counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is in place, and something had to be done for it.
    Success,
    /// The executable could not be put in place.
    BinaryFailed,
    /// The kubeconfig could not be written.
    KubeconfigFailed,
    /// The CNI configuration could not be brought in order.
    ConfFailed,
}

impl Outcome {
    /// The value of the metric's `result` label.
    pub fn label(self) -> &'static str {
        match self {
            Outcome::Success => "SUCCESS",
            Outcome::BinaryFailed => "COPY_BINARIES_FAILURE",
            Outcome::KubeconfigFailed => "CREATE_KUBECONFIG_FAILURE",
            Outcome::ConfFailed => "CREATE_CNI_CONFIG_FAILURE",
        }
    }
}

/// What the keeper tells its owner, from the keeper's thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// What is missing, one reason each; empty: installed. Sent at the end of the first pass and when it changes.
    Readiness(Vec<String>),
    /// A pass wrote something or failed in a new way.
    Installed(Outcome),
    /// Another writer took our entry out once more, and we wait before we put it back.
    Conflict,
}

/// The running keeper. Dropping it stops the thread and waits for it (a pass under way is finished). What is installed
/// stays.
#[derive(Debug)]
pub struct Keeper {
    inbox: Sender<Signal>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread. Fails only when the thread cannot be made.
    pub fn start(options: Options, notice: impl Fn(Notice) + Send + 'static) -> Result<Self> {
        let (inbox, signals) = channel();
        let changes = inbox.clone();
        let thread = thread::spawn("installer", move || {
            let watches = watch(&options, &changes);
            Work::new(options, notice).run(&signals, watches.is_ok());
        })?;
        Ok(Keeper { inbox, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The thread is gone already if nobody listens.
        let _ = self.inbox.send(Signal::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum Signal {
    Changed(PathBuf),
    Stop,
}

/// Watches the directories of everything we keep. Without the watch we look more often.
fn watch(options: &Options, changes: &Sender<Signal>) -> Result<Watch> {
    let mut dirs = vec![options.net_dir.clone(), options.bin_dir.clone()];
    dirs.extend(options.kubeconfig.iter().map(|kubeconfig| kubeconfig.service_account_dir.clone()));
    let changes = changes.clone();
    let changed = move |dir: &Path| {
        // Nobody listens any more while we are being stopped.
        let _ = changes.send(Signal::Changed(dir.to_path_buf()));
    };
    watch::directories("install-watch", dirs, SETTLE, POLL, changed).inspect_err(|e| {
        log::warn!(error:% = e; "cannot watch the CNI directories, looking every {} s", POLL.as_secs());
    })
}

/// One of the three things that are kept.
#[derive(Debug, Default)]
struct Part {
    /// When it is looked at next, whatever is reported.
    due: Option<Instant>,
    /// Why it is not as it should be.
    problem: Option<String>,
}

struct Work<N> {
    options: Options,
    notice: N,
    installed: Binary,
    binary: Part,
    kubeconfig: Part,
    conf: Part,
    conflict: Conflict,
    /// The same for the executable.
    copies: Conflict,
    /// Since when files are being written so that nothing can be decided.
    unsettled: Option<Instant>,
    warned: BTreeMap<String, String>,
    /// What the owner was told last.
    told: Option<Vec<String>>,
}

impl<N: Fn(Notice)> Work<N> {
    fn new(options: Options, notice: N) -> Self {
        Work {
            options,
            notice,
            installed: Binary::default(),
            binary: Part::default(),
            kubeconfig: Part::default(),
            conf: Part::default(),
            conflict: Conflict::default(),
            copies: Conflict::default(),
            unsettled: None,
            warned: BTreeMap::new(),
            told: None,
        }
    }

    fn run(&mut self, signals: &Receiver<Signal>, watched: bool) {
        let interval = if watched { INTERVAL } else { POLL };
        self.sweep();
        loop {
            self.pass(interval);
            let next = [&self.binary, &self.kubeconfig, &self.conf].into_iter().filter_map(|part| part.due).min();
            let mut signal = signals.recv_timeout(next.map_or(interval, clock::until));
            loop {
                match signal {
                    Ok(Signal::Changed(dir)) => self.changed(&dir),
                    Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => break,
                }
                signal = signals.recv_timeout(Duration::ZERO);
            }
        }
    }

    /// Only what an event concerns is looked at again.
    fn changed(&mut self, dir: &Path) {
        let now = clock::now();
        if dir == self.options.net_dir {
            self.conflict.changed(now);
            self.conf.due = Some(now);
        }
        if dir == self.options.bin_dir {
            self.binary.due = Some(now);
            // It may have got the chain's other plugins.
            self.conf.due = self.conf.due.filter(|_| self.conf.problem.is_none()).or(Some(now));
        }
        if self.options.kubeconfig.as_ref().is_some_and(|kubeconfig| dir == kubeconfig.service_account_dir) {
            self.kubeconfig.due = Some(now);
        }
    }

    /// Looks at everything that is due. The executable comes first: no configuration may name a plugin that is not there.
    fn pass(&mut self, interval: Duration) {
        let due = |part: &Part| part.due.is_none_or(|due| due <= clock::now());
        let mut wrote = self.told.is_none();
        if due(&self.binary) {
            wrote |= self.binary(interval);
        }
        if due(&self.kubeconfig) {
            let kubeconfig = self.options.kubeconfig.as_ref();
            let result =
                kubeconfig.map_or(Ok(false), |kubeconfig| kubeconfig::ensure(kubeconfig, &self.options.run_dir));
            wrote |= self.settle(|work| &mut work.kubeconfig, result, interval, Outcome::KubeconfigFailed);
        }
        if due(&self.conf) {
            wrote |= self.conf(interval);
        }
        let parts = [&self.binary, &self.kubeconfig, &self.conf];
        let problems: Vec<String> = parts.into_iter().filter_map(|part| part.problem.clone()).collect();
        if wrote && problems.is_empty() {
            (self.notice)(Notice::Installed(Outcome::Success));
        }
        if self.told.as_ref() != Some(&problems) {
            (self.notice)(Notice::Readiness(problems.clone()));
            self.told = Some(problems);
        }
    }

    /// Notes how a part fared; returns whether it wrote. A failure is logged and counted when it is a new one.
    fn settle(
        &mut self,
        part: impl Fn(&mut Self) -> &mut Part,
        result: Result<bool>,
        interval: Duration,
        failure: Outcome,
    ) -> bool {
        let part = part(self);
        let now = clock::now();
        match result {
            Ok(wrote) => {
                if part.problem.take().is_some() {
                    log::warn!(part = failure.label(); "the installation has recovered");
                }
                part.due = Some(now + interval);
                wrote
            }
            Err(e) => {
                let problem = e.to_string();
                part.due = Some(now + RETRY);
                if part.problem.as_ref() != Some(&problem) {
                    log::error!(error:% = e; "installation failed, trying again every {} s", RETRY.as_secs());
                    part.problem = Some(problem);
                    (self.notice)(Notice::Installed(failure));
                }
                false
            }
        }
    }

    /// Puts the executable in place; returns whether it wrote. During a rolling update another version's agent may do
    /// the same: then the two must not copy as fast as they can.
    fn binary(&mut self, interval: Duration) -> bool {
        let now = clock::now();
        let result = match self.installed.is_current(&self.options) {
            Ok(false) => match self.copies.wait_until(now) {
                Some(until) => {
                    let file = binary::path(&self.options);
                    let reason = format!("{} keeps being replaced by another program", file.display());
                    if self.copies.explain(now) {
                        log::error!(file:% = file.display(); "{reason}");
                    }
                    self.binary.problem = Some(reason);
                    self.binary.due = Some(until);
                    return false;
                }
                None => self.installed.install(&self.options).map(|()| {
                    self.copies.rewrote(now);
                    true
                }),
            },
            Ok(true) => {
                self.copies.intact(now);
                Ok(false)
            }
            Err(e) => Err(e),
        };
        self.settle(|work| &mut work.binary, result, interval, Outcome::BinaryFailed)
    }

    /// Brings the configuration in order; returns whether it wrote.
    fn conf(&mut self, interval: Duration) -> bool {
        let planned = directory::read(&self.options).map(|listing| (plan::install(&listing, &self.options), listing));
        let (plan, listing) = match planned {
            Ok(planned) => planned,
            Err(e) => return self.settle(|work| &mut work.conf, Err(e), interval, Outcome::ConfFailed),
        };
        self.warn(plan.warnings);
        let now = clock::now();
        let (primary, types) = match plan.state {
            State::Installed { primary, types } => (primary, types),
            State::Unsettled => return self.look_again(now),
            State::Waiting(reason) => return self.wait(reason, now + interval),
            State::OtherBinDir(doubt) => return self.wait(doubt.to_string(), now + interval),
        };
        let rewrites = plan.steps.iter().any(|step| step.place == Place::Net);
        if rewrites && self.binary.problem.is_some() {
            self.conf.problem = Some("the CNI configuration waits for the plugin's executable".to_owned());
            self.conf.due = self.binary.due;
            return false;
        }
        if rewrites && let Some(until) = self.conflict.wait_until(now) {
            self.explain(&primary, &types, now);
            self.conf.due = Some(until);
            return false;
        }
        match directory::apply(&plan.steps, &listing, &self.options) {
            Ok(Applied::Done) => self.unsettled = None,
            Ok(Applied::Changed) => return self.look_again(now),
            Err(e) => return self.settle(|work| &mut work.conf, Err(e), interval, Outcome::ConfFailed),
        }
        if rewrites && self.conflict.rewrote(now) {
            (self.notice)(Notice::Conflict);
            self.explain(&primary, &types, now);
        }
        match self.conflict.intact(now) {
            Some(until) => self.conf.due = Some(until),
            None if plan.doubts.is_empty() => {
                return self.settle(|work| &mut work.conf, Ok(rewrites), interval, Outcome::ConfFailed);
            }
            None => {
                let doubts: Vec<String> = plan.doubts.iter().map(ToString::to_string).collect();
                self.wait(doubts.join("; "), now + interval);
            }
        }
        rewrites
    }

    /// We are not ready for this reason, and look again then.
    fn wait(&mut self, reason: String, due: Instant) -> bool {
        if self.conf.problem.as_ref() != Some(&reason) {
            log::warn!(dir:% = self.options.net_dir.display(); "{reason}");
        }
        self.conf.problem = Some(reason);
        self.unsettled = None;
        self.conf.due = Some(due);
        false
    }

    /// A file is just being written by another program. For a moment that is no reason to change anything we say.
    fn look_again(&mut self, now: Instant) -> bool {
        let since = *self.unsettled.get_or_insert(now);
        if self.told.is_none() || now.duration_since(since) > PATIENCE {
            self.conf.problem.get_or_insert_with(|| "waiting for a CNI configuration that is being written".to_owned());
        }
        self.conf.due = Some(now + UNSETTLED);
        false
    }

    /// Says who is taking our entry out again and again, at most once a minute, and keeps the reason for readiness.
    fn explain(&mut self, primary: &str, types: &[String], now: Instant) {
        let file = self.options.net_dir.join(primary);
        let (culprit, remedy) = conflict::culprit(types);
        let reason =
            format!("{} keeps being rewritten without our plugin, probably by {culprit}: {remedy}", file.display());
        if self.conflict.explain(now) {
            log::error!(file:% = file.display(); "{reason}");
        }
        self.conf.problem = Some(reason);
    }

    /// One warning per file and reason.
    fn warn(&mut self, warnings: BTreeMap<String, String>) {
        for (name, remark) in &warnings {
            if self.warned.get(name) != Some(remark) {
                log::warn!(file:% = self.options.net_dir.join(name).display(); "CNI configuration {name}: {remark}");
            }
        }
        self.warned = warnings;
    }

    /// Removes what killed predecessors left half-written. What cannot be removed will not be in the way.
    fn sweep(&self) {
        let swept =
            [directory::sweep(&self.options), binary::sweep(&self.options), kubeconfig::sweep(&self.options.run_dir)];
        for e in swept.into_iter().filter_map(Result::err) {
            log::warn!(error:% = e; "cannot remove left-over temporary files");
        }
    }
}

#[cfg(test)]
mod tests;
