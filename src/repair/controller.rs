//! What is done about broken pods, and when. Pure: pods, the time, and what came of orders go in; orders and what people
//! should know come out.
//!
//! A pod is dealt with once for each run of its container that failed. One that fails again although it was repaired is
//! repaired again, with pauses, and then deleted where that is allowed. Deletions are limited in number, so that a
//! misconfiguration cannot sweep a node.

use super::Options;
use crate::logging::Repeat;
use crate::metrics;
use crate::pod::types::{Pod, PodName};
use crate::sys::backoff::Backoff;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Repairs of a pod before it is given up.
const TRIES: u32 = 4;
/// Shortest and longest pause between two tries of anything; doubled each time.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Deletions within [`WINDOW`].
const DELETIONS: usize = 5;
const WINDOW: Duration = Duration::from_secs(60);

/// What is done about a broken pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remedy {
    Repair,
    Delete,
    Label,
}

impl Remedy {
    /// In metrics.
    fn label(self) -> &'static str {
        match self {
            Remedy::Repair => "repair",
            Remedy::Delete => "delete",
            Remedy::Label => "label",
        }
    }

    /// In Events.
    fn reason(self) -> &'static str {
        match self {
            Remedy::Repair => "RepairBrokenPod",
            Remedy::Delete => "DeleteBrokenPod",
            Remedy::Label => "LabelBrokenPod",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Remedy::Repair => "its traffic is redirected to its sidecar now",
            Remedy::Delete => "deleted",
            Remedy::Label => "labeled",
        }
    }

    fn infinitive(self) -> &'static str {
        match self {
            Remedy::Repair => "redirect it to its sidecar",
            Remedy::Delete => "delete it",
            Remedy::Label => "label it",
        }
    }
}

/// Something to do. [`Controller::settled`] is told what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Redirect the pod of this uid to its sidecar.
    Repair(String),
    /// Delete the pod if it is exactly this one in this version.
    Delete {
        /// Its uid.
        uid: String,
        /// Its name.
        pod: PodName,
        /// Its resourceVersion.
        version: String,
    },
    /// Label the pod.
    Label {
        /// Its uid.
        uid: String,
        /// Its name.
        pod: PodName,
        /// The label's key.
        key: String,
        /// And value.
        value: String,
    },
}

impl Order {
    /// Whom it is about.
    pub fn uid(&self) -> &str {
        match self {
            Order::Repair(uid) | Order::Delete { uid, .. } | Order::Label { uid, .. } => uid,
        }
    }
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It is done.
    Done,
    /// It is another pod by now, or in another version: it is looked at again.
    Outdated,
    /// It failed; another time it may work.
    Failed(String),
    /// It failed for good.
    Hopeless(String),
    /// It is not for us to do, for this reason.
    Refused(String),
}

/// What people who look at a pod should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The pod.
    pub pod: PodName,
    /// Something is wrong, or was taken away.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// The rest.
    pub message: String,
}

/// A broken pod.
#[derive(Debug)]
struct Case {
    pod: PodName,
    version: String,
    /// The pod carries the label.
    labelled: bool,
    /// The run of its container that failed last.
    run: String,
    remedy: Remedy,
    /// When something is to be done.
    at: Option<Instant>,
    /// An order is under way.
    busy: bool,
    /// It is not broken any more, as far as we are told.
    over: bool,
    /// Each time that what was done did not help is a failure.
    pauses: Backoff,
    trouble: Repeat,
    /// It waits for the next deletion that is allowed.
    held: bool,
    /// The version that was to be deleted, and that the pod is not in any more.
    outdated: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct Controller {
    options: Options,
    /// By uid: a pod of the same name is another one.
    cases: BTreeMap<String, Case>,
    /// When pods were deleted lately.
    deletions: VecDeque<Instant>,
}

impl Controller {
    /// Without any pod. `None` where nothing would be done about broken ones.
    pub fn new(options: Options) -> Option<Self> {
        let on = options.repair || options.delete || options.label.is_some();
        on.then(|| Controller { options, cases: BTreeMap::new(), deletions: VecDeque::new() })
    }

    /// A pod is new or different.
    pub fn observe(&mut self, pod: &Pod, now: Instant) {
        let Some(failure) = self.options.filter.failure(pod) else {
            if self.close(&pod.uid) && !pod.being_deleted {
                log::info!(uid = pod.uid.as_str(), pod:% = pod.name; "the pod is not broken any more");
            }
            return;
        };
        let labelled = self.options.label.as_ref().is_some_and(|(key, _)| pod.labels.contains_key(key));
        let version = pod.failed_init.as_ref().map(|failed| failed.version.clone()).unwrap_or_default();
        let Some(case) = self.cases.get_mut(&pod.uid) else {
            log::info!(uid = pod.uid.as_str(), pod:% = pod.name, container = failure.container.as_str();
                "the pod started without traffic redirection: its container failed with exit code {}", failure.exit_code);
            let case = Case {
                pod: pod.name.clone(),
                version,
                labelled,
                run: failure.run.clone(),
                remedy: self.options.first(),
                at: Some(now),
                busy: false,
                over: false,
                pauses: Backoff::new(PAUSE.0, PAUSE.1),
                trouble: Repeat::once(),
                held: false,
                outdated: None,
            };
            self.cases.insert(pod.uid.clone(), case);
            return;
        };
        case.over = false;
        case.labelled = labelled;
        case.version = version;
        if case.run != failure.run {
            case.run.clone_from(&failure.run);
            if case.at.is_none() && !case.busy {
                // What was done did not help; or what failed had begun before it was done.
                case.retry(self.options.delete, now);
            }
        }
        case.look_again(now);
    }

    /// The pod of this uid is gone.
    pub fn gone(&mut self, uid: &str) {
        self.close(uid);
    }

    /// Forgets a case, after what is under way; whether there was one.
    fn close(&mut self, uid: &str) -> bool {
        let Some(case) = self.cases.get_mut(uid) else { return false };
        let known = !std::mem::replace(&mut case.over, true);
        if !case.busy {
            self.cases.remove(uid);
        }
        known
    }

    /// When something is to be done.
    pub fn deadline(&self) -> Option<Instant> {
        self.cases.values().filter(|case| !case.busy).filter_map(|case| case.at).min()
    }

    /// What is to be done now.
    pub fn due(&mut self, now: Instant) -> Vec<Order> {
        let mut orders = Vec::new();
        for (uid, case) in &mut self.cases {
            if case.busy || case.at.is_none_or(|at| at > now) {
                continue;
            }
            let uid = uid.clone();
            let pod = case.pod.clone();
            let order = match case.remedy {
                Remedy::Repair => Order::Repair(uid),
                Remedy::Delete => {
                    if let Some(at) = full_until(&mut self.deletions, now) {
                        case.at = Some(at);
                        if !std::mem::replace(&mut case.held, true) {
                            metrics::REPAIRS.inc([Remedy::Delete.label(), "skip"]);
                            log::warn!(uid = uid, pod:% = pod;
                                "not deleted yet: {DELETIONS} broken pods of this node were deleted within a minute");
                        }
                        continue;
                    }
                    self.deletions.push_back(now);
                    case.outdated = Some(case.version.clone());
                    Order::Delete { uid, pod, version: case.version.clone() }
                }
                Remedy::Label => {
                    let Some((key, value)) = self.options.label.clone().filter(|_| !case.labelled) else {
                        case.at = None;
                        metrics::REPAIRS.inc([Remedy::Label.label(), "skip"]);
                        continue;
                    };
                    Order::Label { uid, pod, key, value }
                }
            };
            case.at = None;
            case.busy = true;
            orders.push(order);
        }
        orders
    }

    /// An order has ended. Returns what people should know.
    pub fn settled(&mut self, uid: &str, end: End, now: Instant) -> Option<Notice> {
        let case = self.cases.get_mut(uid)?;
        case.busy = false;
        let remedy = case.remedy;
        let count = |result| metrics::REPAIRS.inc([remedy.label(), result]);
        if end != End::Outdated {
            case.outdated = None;
        }
        let notice = match end {
            End::Done => {
                count("success");
                let message =
                    format!("pod detected as broken: it started without traffic redirection; {}", remedy.done());
                log::info!(uid = uid, pod:% = case.pod; "{message}");
                case.trouble.worked(now);
                Some(case.notice(remedy, remedy != Remedy::Repair, message))
            }
            End::Outdated => {
                count("skip");
                log::info!(uid = uid, pod:% = case.pod; "not touched: it has changed meanwhile");
                case.look_again(now);
                None
            }
            End::Failed(why) => {
                count("fail");
                let notice = case.trouble(uid, remedy, &why, now);
                case.retry(self.options.delete, now);
                notice
            }
            End::Hopeless(why) => {
                count("fail");
                let notice = case.trouble(uid, remedy, &why, now);
                if self.options.delete && remedy == Remedy::Repair {
                    case.remedy = Remedy::Delete;
                    case.at = Some(now);
                }
                notice
            }
            End::Refused(why) => {
                count("skip");
                case.trouble(uid, remedy, &why, now)
            }
        };
        if case.over {
            self.cases.remove(uid);
        }
        notice
    }
}

impl Options {
    /// The first that is on.
    fn first(&self) -> Remedy {
        match (self.repair, self.delete) {
            (true, _) => Remedy::Repair,
            (false, true) => Remedy::Delete,
            (false, false) => Remedy::Label,
        }
    }
}

impl Case {
    /// What was not deleted because it has changed is deleted as soon as it is known how it is now.
    fn look_again(&mut self, now: Instant) {
        if !self.busy && self.outdated.take_if(|outdated| *outdated != self.version).is_some() {
            self.at = Some(now);
        }
    }

    /// The next try, after a pause; of another kind where this one was tried often enough.
    fn retry(&mut self, delete: bool, now: Instant) {
        self.at = Some(self.pauses.failed(now, 0.0));
        let tries = self.pauses.failures();
        if self.remedy == Remedy::Repair && tries >= TRIES && delete {
            log::warn!(pod:% = self.pod; "{tries} tries to repair it did not help; it is deleted");
            self.remedy = Remedy::Delete;
            self.at = Some(now);
        }
    }

    fn notice(&self, remedy: Remedy, warning: bool, message: String) -> Notice {
        Notice { pod: self.pod.clone(), warning, reason: remedy.reason(), message }
    }

    /// Says what is wrong: once while it stays the same.
    fn trouble(&mut self, uid: &str, remedy: Remedy, why: &str, now: Instant) -> Option<Notice> {
        let message = format!("pod detected as broken, but failed to {}: {why}", remedy.infinitive());
        if self.trouble.failed(&message, now).is_none() {
            log::debug!(uid = uid, pod:% = self.pod; "{message}");
            return None;
        }
        log::warn!(uid = uid, pod:% = self.pod; "{message}");
        Some(self.notice(remedy, true, message))
    }
}

/// When the next deletion is allowed, if none is now.
fn full_until(deletions: &mut VecDeque<Instant>, now: Instant) -> Option<Instant> {
    deletions.retain(|at| now.saturating_duration_since(*at) < WINDOW);
    (deletions.len() >= DELETIONS).then(|| deletions.front().map(|at| *at + WINDOW)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::object::Versioned;
    use crate::repair::detect::Filter;
    use crate::sys::clock;

    struct Script {
        controller: Controller,
        now: Instant,
    }

    fn options(repair: bool, delete: bool, label: bool) -> Options {
        let label = label.then(|| ("cni.istio.io/uninitialized".to_owned(), "true".to_owned()));
        let filter = Filter { container: "v".to_owned(), exit_code: 126, ..Filter::default() };
        Options { filter, repair, delete, label }
    }

    impl Script {
        fn new(repair: bool, delete: bool, label: bool) -> Self {
            Script { controller: Controller::new(options(repair, delete, label)).unwrap(), now: clock::now() }
        }

        /// The pod's container has ended: which run, and how.
        fn ended(&mut self, uid: &str, version: u32, run: &str, code: i32, labels: &str) {
            let text = format!(
                r#"{{"metadata":{{"name":"web","namespace":"a","uid":"{uid}","resourceVersion":"{version}","labels":{{{labels}}}}},
                "status":{{"initContainerStatuses":[{{"name":"v","state":{{"terminated":{{"exitCode":{code},"containerID":"{run}"}}}}}}]}}}}"#
            );
            let pod: Versioned<Pod> = serde_json::from_str(&text).unwrap();
            self.controller.observe(&pod.object, self.now);
        }

        fn fails(&mut self, uid: &str, version: u32, run: &str) {
            self.ended(uid, version, run, 126, "");
        }

        /// What is to be done now, in short.
        fn due(&mut self) -> Vec<String> {
            let orders = self.controller.due(self.now);
            assert!(self.controller.deadline().is_none_or(|at| at > self.now), "it would be asked again and again");
            let short = |order| match order {
                Order::Repair(uid) => format!("repair {uid}"),
                Order::Delete { uid, version, pod } => format!("delete {uid} {version} {pod}"),
                Order::Label { uid, key, value, .. } => format!("label {uid} {key}={value}"),
            };
            orders.into_iter().map(short).collect()
        }

        /// The seconds until something is due.
        fn pause(&self) -> Option<u64> {
            self.controller.deadline().map(|at| at.saturating_duration_since(self.now).as_secs())
        }

        fn wait(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
        }

        fn settled(&mut self, uid: &str, end: End) -> String {
            let notice = self.controller.settled(uid, end, self.now);
            notice.map_or(String::new(), |n| format!("{}{} {}", if n.warning { "!" } else { "" }, n.reason, n.message))
        }
    }

    #[test]
    fn the_first_mode_that_is_on() {
        for (repair, delete, label, want) in [
            (true, true, true, "repair u"),
            (false, true, true, "delete u 1 a/web"),
            (false, false, true, "label u cni.istio.io/uninitialized=true"),
        ] {
            let mut script = Script::new(repair, delete, label);
            script.fails("u", 1, "r1");
            assert_eq!(script.due(), [want]);
            assert_eq!(script.due(), [""; 0], "it is under way");
        }
        assert!(Controller::new(options(false, false, false)).is_none());
    }

    #[test]
    fn a_pod_is_repaired_once_for_each_failure_and_forgotten_when_it_is_right() {
        let mut script = Script::new(true, false, false);
        script.fails("u", 1, "r1");
        assert_eq!(script.due(), ["repair u"]);
        let told = script.settled("u", End::Done);
        assert!(told.starts_with("RepairBrokenPod pod detected as broken"), "{told}");
        // Reported again and again while it waits for its next start.
        for version in 2..5 {
            script.fails("u", version, "r1");
            assert_eq!((script.due().len(), script.pause()), (0, None));
        }
        script.ended("u", 6, "r2", 0, "");
        assert!(script.controller.cases.is_empty());
        script.fails("u", 7, "r3");
        assert_eq!(script.due(), ["repair u"], "a new sandbox, perhaps");
        // It is right before the order is done.
        script.ended("u", 8, "r4", 0, "");
        script.settled("u", End::Done);
        assert!(script.controller.cases.is_empty());
        // Another pod of that name is another pod.
        script.fails("w", 9, "r1");
        assert_eq!(script.due(), ["repair w"]);
        script.controller.gone("w");
        assert!(script.settled("w", End::Done).starts_with("RepairBrokenPod "), "it counts all the same");
        assert_eq!((script.controller.cases.len(), script.settled("w", End::Done).as_str()), (0, ""));
    }

    #[test]
    fn what_does_not_help_is_done_again_with_pauses_and_then_deleted_if_that_is_on() {
        for delete in [true, false] {
            let mut script = Script::new(true, delete, false);
            script.fails("u", 1, "r0");
            for pause in [1, 2, 4] {
                assert_eq!(script.due(), ["repair u"]);
                script.settled("u", End::Done);
                script.fails("u", 1, &format!("r{pause}"));
                assert_eq!((script.due().len(), script.pause()), (0, Some(pause)));
                script.wait(pause);
            }
            assert_eq!(script.due(), ["repair u"]);
            script.settled("u", End::Done);
            script.fails("u", 2, "r-last");
            if delete {
                assert_eq!(script.due(), ["delete u 2 a/web"]);
            } else {
                assert_eq!((script.due().len(), script.pause()), (0, Some(8)));
            }
        }
    }

    #[test]
    fn failures_are_told_once_and_tried_again_and_what_is_hopeless_is_deleted() {
        let mut script = Script::new(true, true, false);
        script.fails("u", 1, "r1");
        assert_eq!(script.due(), ["repair u"]);
        let told = script.settled("u", End::Failed("no process".into()));
        assert_eq!(
            told,
            "!RepairBrokenPod pod detected as broken, but failed to redirect it to its sidecar: no process"
        );
        for pause in [1, 2] {
            assert_eq!(script.pause(), Some(pause));
            script.wait(pause);
            assert_eq!(script.due(), ["repair u"]);
            assert_eq!(script.settled("u", End::Failed("no process".into())), "");
        }
        script.wait(4);
        assert_eq!(script.due(), ["repair u"]);
        script.settled("u", End::Failed("no process".into()));
        assert_eq!(script.due(), ["delete u 1 a/web"]);
        let told = script.settled("u", End::Done);
        assert!(told.starts_with("!DeleteBrokenPod ") && told.ends_with("; deleted"), "{told}");

        script.fails("w", 1, "r1");
        assert_eq!(script.due(), ["repair w"]);
        assert!(script.settled("w", End::Hopeless("it has finished".into())).starts_with("!RepairBrokenPod"));
        assert_eq!(script.due(), ["delete w 1 a/web"]);

        script.fails("x", 1, "r1");
        assert_eq!(script.due(), ["repair x"]);
        assert!(script.settled("x", End::Refused("not ours".into())).contains("not ours"));
        assert_eq!((script.due().len(), script.pause()), (0, None), "not deleted");
    }

    #[test]
    fn deletions_are_limited() {
        let mut script = Script::new(false, true, false);
        for pod in 0..12 {
            script.fails(&format!("u{pod:02}"), 1, "r");
        }
        let mut deleted = script.due();
        assert_eq!(deleted.len(), DELETIONS);
        script.wait(30);
        assert_eq!(script.due().len(), 0);
        assert_eq!(script.pause(), Some(30));
        script.wait(30);
        deleted.extend(script.due());
        assert_eq!(deleted.len(), 2 * DELETIONS);
        script.wait(60);
        deleted.extend(script.due());
        deleted.sort();
        deleted.dedup();
        assert_eq!(deleted.len(), 12);
    }

    #[test]
    fn a_pod_that_has_changed_is_deleted_as_it_is_now_or_not_at_all() {
        let mut script = Script::new(false, true, false);
        script.fails("u", 1, "r1");
        assert_eq!(script.due(), ["delete u 1 a/web"]);
        assert_eq!(script.settled("u", End::Outdated), "");
        assert_eq!((script.due().len(), script.pause()), (0, None), "nothing is known of what it is now");
        script.fails("u", 2, "r1");
        assert_eq!(script.due(), ["delete u 2 a/web"]);
        // The news comes before the answer.
        script.fails("u", 3, "r1");
        script.settled("u", End::Outdated);
        assert_eq!(script.due(), ["delete u 3 a/web"]);
        script.settled("u", End::Outdated);
        script.ended("u", 4, "r2", 0, "");
        assert_eq!((script.due().len(), script.pause()), (0, None), "it is right now");
        // Once it is deleted, that is that.
        script.fails("w", 1, "r1");
        assert_eq!(script.due(), ["delete w 1 a/web"]);
        script.settled("w", End::Done);
        script.fails("w", 2, "r1");
        assert_eq!((script.due().len(), script.pause()), (0, None));
    }

    #[test]
    fn a_label_is_put_on_once() {
        let mut script = Script::new(false, false, true);
        script.fails("u", 1, "r1");
        assert_eq!(script.due().len(), 1);
        assert!(script.settled("u", End::Done).starts_with("!LabelBrokenPod "));
        script.ended("u", 2, "r1", 126, r#""cni.istio.io/uninitialized":"true""#);
        assert_eq!((script.due().len(), script.pause()), (0, None));
        script.ended("u", 2, "r2", 126, r#""cni.istio.io/uninitialized":"true""#);
        script.wait(1);
        assert_eq!((script.due().len(), script.pause()), (0, None));
        script.ended("w", 1, "r1", 126, r#""cni.istio.io/uninitialized":"other""#);
        assert_eq!(script.due().len(), 0, "somebody has labelled it");
    }
}
