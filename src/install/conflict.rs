//! Another writer keeps taking our entry out: when we may write again, and what people should be told. Pure: every
//! function is handed the time.
//!
//! Two kinds of opponents exist. One writes all the time, whatever the file says: when the directory has been quiet
//! for a while, it has stopped. The other writes only in answer to us, so quiet says nothing about it, and only the
//! exponential back-off limits how often we try.

use crate::sys::backoff::Backoff;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// More rewrites than this within [`WINDOW`] are a conflict.
const TOLERATED: usize = 5;
const WINDOW: Duration = Duration::from_secs(10);

/// Back-off between writes during a conflict: the first, the growth, the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const GROWTH: f64 = 1.5;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How long our entry must stay, or the other writer must be silent, until the conflict counts as over.
const QUIET: Duration = Duration::from_secs(2);

/// How often the conflict is explained in the log.
const REMINDER: Duration = Duration::from_secs(60);

/// How long a won conflict is remembered: a new rewrite within that time goes on where the last one ended.
const MEMORY: Duration = Duration::from_secs(60);

/// The state of one configuration's conflicts.
#[derive(Debug)]
pub struct Conflict {
    /// Times of our recent rewrites, oldest first; at most [`TOLERATED`] + 1.
    writes: VecDeque<Instant>,
    /// During a conflict each rewrite counts as a failure.
    pauses: Backoff,
    /// The last change by somebody else that was no answer to a write of ours.
    unprovoked: Option<Instant>,
    explained: Option<Instant>,
}

impl Default for Conflict {
    fn default() -> Self {
        let pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE).growing_by(GROWTH);
        Conflict { writes: VecDeque::new(), pauses, unprovoked: None, explained: None }
    }
}

impl Conflict {
    /// We rewrote the configuration because our entry was not as it should be. Returns whether this is a conflict.
    pub fn rewrote(&mut self, now: Instant) -> bool {
        let recent = self.writes.iter().filter(|at| now.duration_since(**at) < WINDOW).count();
        if self.is_on() || recent >= TOLERATED {
            self.pauses.failed(now, 0.0);
        }
        self.writes.push_back(now);
        if self.writes.len() > TOLERATED + 1 {
            self.writes.pop_front();
        }
        self.unprovoked = None;
        self.is_on()
    }

    fn is_on(&self) -> bool {
        self.pauses.failures() > 0
    }

    /// Something in the directory changed.
    pub fn changed(&mut self, now: Instant) {
        // What comes right after our write is our own write, or the answer to it.
        if self.writes.back().is_some_and(|wrote| now.duration_since(*wrote) > FIRST_PAUSE / 2) {
            self.unprovoked = Some(now);
        }
    }

    /// From when on we may rewrite; `None`: at once.
    pub fn wait_until(&self, now: Instant) -> Option<Instant> {
        let backed_off = self.pauses.blocked(now)?;
        let silent = self.unprovoked.map(|at| at + QUIET);
        let until = silent.map_or(backed_off, |silent| silent.min(backed_off));
        (until > now).then_some(until)
    }

    /// Our entry is as it should be. Returns from when on that is believed; `None`: now, and the conflict is over.
    pub fn intact(&mut self, now: Instant) -> Option<Instant> {
        let wrote = *self.writes.back().filter(|_| self.is_on())?;
        if now < wrote + QUIET {
            return Some(wrote + QUIET);
        }
        if now.duration_since(wrote) > MEMORY {
            *self = Conflict::default();
        }
        None
    }

    /// Whether the explanation is due now (it then counts as given).
    pub fn explain(&mut self, now: Instant) -> bool {
        let due = self.explained.is_none_or(|at| now.duration_since(at) >= REMINDER);
        if due {
            self.explained = Some(now);
        }
        due
    }
}

/// Who probably writes the file, and what ends the conflict, judged by the plugin types of the primary.
pub fn culprit(types: &[String]) -> (&'static str, &'static str) {
    let unknown = ("a program that is not known here", "find out which program writes it (fatrace, auditctl -w)");
    known_writer(types).unwrap_or(unknown)
}

/// The same where it is known.
pub fn known_writer(types: &[String]) -> Option<(&'static str, &'static str)> {
    types.iter().find_map(|kind| match kind.as_str() {
        "cilium-cni" => Some(("Cilium (exclusive mode)", "set cni.exclusive=false in Cilium's Helm values")),
        "multus" | "multus-shim" => {
            Some(("Multus", "give Multus a fixed configuration file, or name another file with --cni-conf-name"))
        }
        "calico" => Some(("Calico's install-cni", "let the operator manage one CNI configuration only")),
        "antrea" => Some(("Antrea's agent", "keep Antrea from rewriting its CNI configuration")),
        "aws-cni" => Some(("the AWS VPC CNI (aws-node)", "keep aws-node from rewriting its CNI configuration")),
        "azure-vnet" | "azure-ipam" => Some(("Azure CNI", "keep azure-cns from rewriting its CNI configuration")),
        "ovn-k8s-cni-overlay" => {
            Some(("OVN-Kubernetes", "chain through Multus instead (chained-cni-plugin=false on OpenShift)"))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;

    /// Plays an opponent against us in steps of 10 ms: `reverts(time, intact)` says whether it takes our entry out.
    /// Returns our writes and when we believed to be installed for good after `stop`.
    fn play(stop: Duration, reverts: impl Fn(bool) -> bool) -> (Vec<Duration>, Option<Duration>, usize) {
        let start = clock::now();
        let (mut conflict, mut intact, mut writes, mut believed) = (Conflict::default(), false, Vec::new(), None);
        let mut explanations = 0;
        for tick in 0..12_000 {
            let time = Duration::from_millis(tick * 10);
            let now = start + time;
            if time < stop && reverts(intact) {
                intact = false;
                believed = None;
                conflict.changed(now);
            }
            if intact {
                if conflict.intact(now).is_none() && believed.is_none() {
                    believed = Some(time);
                }
            } else if conflict.wait_until(now).is_none() {
                if conflict.rewrote(now) && conflict.explain(now) {
                    explanations += 1;
                }
                writes.push(time);
                intact = true;
            }
        }
        (writes, believed, explanations)
    }

    #[test]
    fn a_writer_that_never_rests_is_waited_out() {
        let stop = Duration::from_secs(20);
        let (writes, believed, explanations) = play(stop, |_| true);
        assert!(writes.len() <= 14, "{writes:?}");
        let believed = believed.unwrap();
        assert!(believed > stop && believed <= stop + Duration::from_secs(5), "{believed:?}");
        assert_eq!(explanations, 1);
    }

    #[test]
    fn a_writer_that_answers_us_is_left_alone_more_and_more() {
        let (writes, believed, _) = play(Duration::from_secs(20), |intact| intact);
        assert!(writes.len() <= 14, "{writes:?}");
        assert!(believed.unwrap() <= Duration::from_secs(25), "{believed:?}");
        let (writes, _, explanations) = play(Duration::from_secs(120), |intact| intact);
        assert!(writes.len() <= 20, "{writes:?}");
        assert_eq!(explanations, 2);
        let mut conflict = Conflict::default();
        let mut now = clock::now();
        let mut wrote = now;
        for _ in 0..40 {
            wrote = now;
            conflict.rewrote(now);
            now = conflict.wait_until(now).unwrap_or(now);
        }
        assert_eq!(now - wrote, LONGEST_PAUSE);
    }

    #[test]
    fn a_few_rewrites_are_no_fight() {
        let mut conflict = Conflict::default();
        let mut now = clock::now();
        for _ in 0..50 {
            assert!(!conflict.rewrote(now));
            assert_eq!(conflict.wait_until(now), None);
            assert_eq!(conflict.intact(now), None);
            now += Duration::from_secs(3);
        }
    }

    #[test]
    fn the_limits_of_the_times() {
        let start = clock::now();
        let in_conflict = || {
            let mut conflict = Conflict::default();
            (0..=TOLERATED).for_each(|_| assert_eq!(conflict.rewrote(start), conflict.is_on()));
            assert!(conflict.is_on());
            conflict
        };
        // A change this soon is the answer to our write; a moment later it is not, and its silence ends the wait.
        let mut conflict = in_conflict();
        conflict.changed(start + FIRST_PAUSE / 2);
        assert_eq!(conflict.unprovoked, None);
        conflict.changed(start + FIRST_PAUSE / 2 + Duration::from_millis(1));
        assert!(conflict.unprovoked.is_some());
        // Our entry is believed when it has stayed this long, and the conflict is forgotten after that.
        let mut conflict = in_conflict();
        assert_eq!(conflict.intact(start), Some(start + QUIET));
        assert_eq!(conflict.intact(start + QUIET), None);
        assert_eq!(conflict.intact(start + MEMORY), None);
        assert!(conflict.is_on());
        assert_eq!(conflict.intact(start + MEMORY + Duration::from_millis(1)), None);
        assert!(!conflict.is_on());
        // Rewrites that lie this far apart are none of one conflict.
        let mut conflict = Conflict::default();
        (0..TOLERATED).for_each(|_| assert!(!conflict.rewrote(start)));
        assert!(!conflict.rewrote(start + WINDOW));
    }

    #[test]
    fn writers_are_known_by_the_plugins() {
        let check = |types: &[&str], expected: &str| {
            let types: Vec<String> = types.iter().map(|kind| (*kind).to_owned()).collect();
            let (writer, remedy) = culprit(&types);
            assert!(writer.contains(expected) && !remedy.is_empty(), "{writer}: {remedy}");
            assert_eq!(known_writer(&types).is_some(), !writer.contains("not known"));
        };
        check(&["portmap", "cilium-cni"], "Cilium");
        check(&["multus"], "Multus");
        check(&["multus-shim"], "Multus");
        check(&["calico"], "Calico");
        check(&["antrea"], "Antrea");
        check(&["aws-cni"], "aws-node");
        check(&["azure-vnet"], "Azure");
        check(&["azure-ipam"], "Azure");
        check(&["ovn-k8s-cni-overlay"], "OVN");
        check(&["bridge"], "not known");
        check(&[], "not known");
    }
}
