//! When a pod's namespace is looked for, and what follows when it is not found.

use super::Node;
use crate::node::pod::Pod;
use std::time::Duration;

/// The longest pause between searches where verification is off.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Node {
    /// The next step of a pod whose namespace is not known: it should be in the mesh (`wanted`), or something of ours
    /// is still in it.
    pub(super) fn seek(&mut self, pod: &mut Pod, wanted: bool) {
        let recalled = pod.sandbox().is_recalled();
        if self.is_stopping() || !(wanted || recalled) || pod.held().is_some() {
            return;
        }
        if pod.ips().is_empty() {
            if recalled && !wanted {
                self.give_up(pod);
            } else if pod.published().is_some() {
                self.announce(pod, format!("lost: {} knows no address of the pod yet", self.config.source));
            }
            return;
        }
        match pod.search().blocked(self.now) {
            Some(at) => pod.wake_at(at),
            None => pod.search().want(),
        }
    }

    pub(super) fn not_found(&mut self, pod: &mut Pod, failure: Option<String>, refused: &[String]) {
        if pod.sandbox().is_recalled() && failure.is_none() && self.goal(pod).is_none() && !self.is_unread(pod) {
            self.give_up(pod);
            return;
        }
        let interval = self.config.verify_interval;
        let longest = if interval.is_zero() { LONGEST_PAUSE } else { interval };
        pod.search().failed(self.now, longest);
        if !pod.sandbox().is_torn_down() {
            let lost = || format!("lost: no running process of the pod has its address{}", refusal(refused));
            self.announce(pod, failure.unwrap_or_else(lost));
        }
    }

    /// The namespace an earlier run had put rules into is gone, and the pod is not wanted.
    fn give_up(&mut self, pod: &mut Pod) {
        pod.give_up();
        self.withdraw(pod);
    }
}

/// What was taken for a pod's and is none of its, if anything: told once, when the search has ended.
pub(super) fn refusal(refused: &[String]) -> String {
    if refused.is_empty() { String::new() } else { format!("; refused {}", refused.join("; and ")) }
}
