//! The state as scripts: what happens on the left, what it does about it on the right.

mod node;
mod outside;
mod repair;
mod time;

use super::*;
use crate::agent::event::Redirection;
use crate::cni::event::AddEvent;
use crate::cni::event::GcEvent;
use crate::cni::outside::Outside;
use crate::dataplane::inpod::Differences;
use crate::error::{Error, Kind};
use crate::pod::selector::EnablementSelectors;
use crate::pod::types::{Namespace, Pod as Object};
use crate::zds::server::{ConnectionId, Notice as Zds, Request as Told};
use std::sync::mpsc::channel;

/// A state, the time, and names for things that have only numbers.
struct Script {
    state: State,
    now: Instant,
    netns: BTreeMap<&'static str, Arc<Netns>>,
    /// What was handed out and is not done yet, in order.
    work: Vec<(TaskId, String, Option<Record>)>,
    /// Requests that were sent to ztunnels and are not answered yet.
    sent: Vec<(ConnectionId, Told)>,
    /// What plugins were told last in case they find us gone.
    outside: Option<Outside>,
    replies: u64,
}

fn config() -> Config {
    let selectors =
        r#"[{"podSelector":{"matchLabels":{"mesh":"on"}}},{"namespaceSelector":{"matchLabels":{"mesh":"on"}}}]"#;
    Config {
        policy: Policy {
            ambient_enabled: true,
            selectors: EnablementSelectors::parse(selectors).unwrap(),
            exclude_namespaces: Vec::new(),
            system_namespace: "istio-system".to_owned(),
        },
        settings: node_settings(),
        host: Netns::own().unwrap().id(),
        host_side: false,
        verify_interval: Duration::ZERO,
        reconcile_on_startup: false,
        source: "the test".to_owned(),
        cluster: false,
        repair: None,
        ztunnel_socket: "ztunnel.sock".to_owned(),
    }
}

fn node_settings() -> NodeSettings {
    NodeSettings {
        dns_capture: true,
        ipv6: true,
        probe_v4: [169, 254, 7, 127].into(),
        probe_v6: "fd16::1".parse().unwrap(),
    }
}

/// A pod `default/NAME` with uid NAME and an address.
fn pod(name: &str, mesh: bool) -> Object {
    let labels = if mesh { r#","labels":{"mesh":"on"}"# } else { "" };
    let text = format!(
        r#"{{"kind":"Pod","metadata":{{"name":"{name}","uid":"{name}"{labels}}},"status":{{"podIP":"10.0.0.1"}}}}"#
    );
    crate::pod::object::decode(&text).unwrap().pods.remove(0)
}

fn different(what: &str) -> Differences {
    Differences { rules: vec![what.to_owned()], ..Differences::default() }
}

fn record(uid: &str) -> Record {
    Record {
        uid: uid.to_owned(),
        alias: None,
        namespace: "default".to_owned(),
        name: uid.to_owned(),
        container_id: format!("{uid}-old"),
        path: format!("/var/run/netns/{uid}"),
        ips: vec!["10.0.0.1".parse().unwrap()],
        settings: NodeSettings { dns_capture: false, ..node_settings() },
        enrolled: true,
    }
}

impl Script {
    fn new() -> Self {
        Self::after(config(), Vec::new(), Published::new())
    }

    fn after(config: Config, records: Vec<Record>, published: Published) -> Self {
        let now = crate::sys::clock::now();
        let state = State::new(config, records, published, Box::new(|| 0.0), now);
        Script { state, now, netns: BTreeMap::new(), work: Vec::new(), sent: Vec::new(), outside: None, replies: 0 }
    }

    /// A running agent with one ztunnel and one pod in the mesh that came long ago.
    fn running() -> Self {
        let mut script = Script::new();
        script.source(Notice::Synced);
        script.ztunnel(Zds::Connected(ConnectionId(1)));
        script.source(Notice::Pod(Box::new(pod("a", true))));
        script
    }

    fn netns(&mut self, name: &'static str) -> Arc<Netns> {
        Arc::clone(self.netns.entry(name).or_insert_with(|| Arc::new(Netns::scratch().unwrap())))
    }

    fn name_of(&self, id: NetnsId) -> &'static str {
        self.netns.iter().find(|(_, netns)| netns.id() == id).map_or("?", |(name, _)| name)
    }

    #[track_caller]
    fn step(&mut self, event: Event) -> Vec<String> {
        let actions = self.state.step(event, self.now);
        let over = matches!(actions.last(), Some(Action::Exit));
        if let Some(deadline) = self.state.deadline().filter(|_| !over) {
            assert!(deadline > self.now, "a deadline that has passed would make the loop spin");
        }
        let mut lines = Vec::new();
        for action in actions {
            // The disk works, and nobody waits to see it.
            if let Action::Work(id, Work::Note(uid, record)) = action {
                lines.push(format!("{} {uid}", if record.is_some() { "remember" } else { "forget" }));
                lines.extend(self.step(Event::Done(id, Outcome::Noted(Ok(record)))));
            } else if let Action::Outside(outside) = action {
                self.outside = Some(outside);
            } else {
                lines.push(self.describe(action));
            }
        }
        lines
    }

    fn describe(&mut self, action: Action) -> String {
        match action {
            Action::Work(id, work) => {
                let record = match &work {
                    Work::Apply(_, _, record) | Work::Check(_, _, record) => record.clone(),
                    _ => None,
                };
                let text = match &work {
                    Work::Apply(netns, settings, record) => {
                        let dns = if settings.dns_capture { "" } else { " without dns" };
                        let record = if record.is_some() { ", remembered" } else { "" };
                        format!("apply {}{dns}{record}", self.name_of(netns.id()))
                    }
                    Work::Check(netns, ..) => format!("check {}", self.name_of(netns.id())),
                    Work::Recognise(netns, candidates) => {
                        format!("recognise {} among {}", self.name_of(netns.id()), candidates.len())
                    }
                    Work::Redirect(netns, wanted, ips) => {
                        format!("redirect {} {:?} of {ips:?}", self.name_of(netns.id()), wanted.settings.interception)
                    }
                    Work::Inspect(netns, wanted, _) => {
                        format!("inspect {} {:?}", self.name_of(netns.id()), wanted.settings.interception)
                    }
                    Work::Remove(netns) => format!("remove {}", self.name_of(netns.id())),
                    Work::Note(uid, _) => format!("note {uid}"),
                    Work::Enter { uid, addresses: ips, inside, .. } => {
                        let inside =
                            inside.as_ref().map_or(String::new(), |n| format!(" inside {}", self.name_of(n.id())));
                        format!("enter {uid} {ips:?}{inside}")
                    }
                    Work::Leave(uid) => format!("leave {uid}"),
                    Work::Host { prune } => format!("host{}", if *prune { ", pruned" } else { "" }),
                    Work::Compare(pods) => {
                        format!("compare {}", pods.iter().map(|(s, _)| s.uid.as_str()).collect::<Vec<_>>().join(" "))
                    }
                    Work::Walk(sought, _) => {
                        format!("walk {}", sought.iter().map(|s| s.uid.as_str()).collect::<Vec<_>>().join(" "))
                    }
                    Work::Probe(paths) => {
                        format!("probe {}", paths.iter().map(|p| p.path.as_str()).collect::<Vec<_>>().join(" "))
                    }
                };
                self.work.push((id, text.clone(), record));
                text
            }
            Action::LookUp(name) => format!("look up {name}"),
            Action::Publish(uid, _, redirection) => format!("publish {uid} {redirection:?}"),
            Action::Outside(outside) => format!("outside {outside:?}"),
            Action::Announce(lament) if lament.component == "cni-repair" => {
                format!("announce {}: {} {}", lament.uid, lament.reason, lament.message)
            }
            Action::Announce(lament) => format!("announce {}: {}", lament.uid, lament.message),
            Action::Remedy(order) => format!("{order:?}"),
            Action::Snapshot(connection, items) => {
                let text = items.iter().map(|item| self.told(item)).collect::<Vec<_>>().join(", ");
                self.sent.extend(items.into_iter().map(|item| (connection, item)));
                format!("snapshot {}: {text}", connection.0)
            }
            Action::Send(connection, request) => {
                let text = format!("send {}: {}", connection.0, self.told(&request));
                self.sent.push((connection, request));
                text
            }
            Action::Reply(to, answer) => match answer {
                Answer::Done => format!("reply {}: done", to.id),
                Answer::Decided(answer) => format!("reply {}: {}", to.id, answer.action),
                Answer::Failed(failure) => format!("reply {}: {} {}", to.id, failure.code, failure.message),
                Answer::NotReady(_) => format!("reply {}: not ready", to.id),
                Answer::Json(_) => format!("reply {}: json", to.id),
            },
            Action::Exit => "exit".to_owned(),
        }
    }

    fn told(&self, request: &Told) -> String {
        match request {
            Told::Add { uid, info, netns } => {
                let account = if info.service_account == "default" { "" } else { &info.service_account };
                format!("add {uid} {}{account}", self.name_of(netns.id()))
            }
            Told::Keep { uid } => format!("keep {uid}"),
            Told::Del { uid } => format!("del {uid}"),
        }
    }

    fn source(&mut self, notice: Notice) -> Vec<String> {
        self.step(Event::Source(notice))
    }

    fn ztunnel(&mut self, notice: Zds) -> Vec<String> {
        self.step(Event::Ztunnel(notice))
    }

    fn reply(&mut self) -> ReplyTo {
        self.replies += 1;
        ReplyTo { id: self.replies, channel: channel().0 }
    }

    /// Our plugin's ADD of a pod `default/NAME`.
    fn add(&mut self, name: &str, netns: &'static str) -> Vec<String> {
        self.add_as(name, netns, true)
    }

    fn add_as(&mut self, name: &str, netns: &'static str, ours: bool) -> Vec<String> {
        let event = AddEvent {
            netns: format!("/var/run/netns/{netns}"),
            pod_name: name.to_owned(),
            pod_namespace: "default".to_owned(),
            container_id: if ours { format!("box-{netns}") } else { String::new() },
            pod_uid: if ours { name.to_owned() } else { String::new() },
            decide: ours,
            ..AddEvent::default()
        };
        let (netns, reply) = (self.netns(netns), self.reply());
        self.step(Event::Request(Request::Add(event, Ok(netns)), reply))
    }

    fn attachment(&mut self, name: &str, netns: &'static str) -> (AttachmentEvent, Arc<Netns>, ReplyTo) {
        let event = AttachmentEvent {
            pod_name: name.to_owned(),
            pod_namespace: "default".to_owned(),
            container_id: format!("box-{netns}"),
            ..AttachmentEvent::default()
        };
        (event, self.netns(netns), self.reply())
    }

    fn del(&mut self, name: &str, netns: &'static str) -> Vec<String> {
        let (event, netns, reply) = self.attachment(name, netns);
        self.step(Event::Request(Request::Del(event, Ok(netns)), reply))
    }

    fn check(&mut self, name: &str, netns: &'static str) -> Vec<String> {
        let (event, netns, reply) = self.attachment(name, netns);
        self.step(Event::Request(Request::Check(event, Ok(netns)), reply))
    }

    /// The oldest work in hand ends like this.
    #[track_caller]
    fn done(&mut self, outcome: Outcome) -> Vec<String> {
        let (id, ..) = self.work.remove(0);
        self.step(Event::Done(id, outcome))
    }

    #[track_caller]
    fn applied(&mut self) -> Vec<String> {
        assert!(self.work[0].1.starts_with("apply"), "{:?}", self.work);
        let record = self.work[0].2.clone();
        self.done(Outcome::Applied(Ok(Vec::new()), record))
    }

    #[track_caller]
    fn removed(&mut self) -> Vec<String> {
        assert!(self.work[0].1.starts_with("remove"), "{:?}", self.work);
        self.done(Outcome::Removed(Ok(())))
    }

    #[track_caller]
    fn walked(&mut self, found: &[(&str, &'static str)]) -> Vec<String> {
        assert!(self.work[0].1.starts_with("walk"), "{:?}", self.work);
        let found = found.iter().map(|(uid, netns)| ((*uid).to_owned(), self.netns(netns))).collect();
        self.done(Outcome::Walked(Ok(found)))
    }

    /// A ztunnel answers the oldest request it was sent.
    #[track_caller]
    fn answer(&mut self, connection: u64, result: crate::error::Result<()>) -> Vec<String> {
        let at = self.sent.iter().position(|(id, _)| id.0 == connection).expect("nothing was sent");
        let (connection, request) = self.sent.remove(at);
        self.ztunnel(Zds::Answered { connection, request, result })
    }

    #[track_caller]
    fn acked(&mut self, connection: u64) -> Vec<String> {
        self.answer(connection, Ok(()))
    }

    /// Time passes up to the next deadline, at most this long.
    #[track_caller]
    fn wait(&mut self, longest: Duration) -> Vec<String> {
        let limit = self.now + longest;
        self.now = self.state.deadline().map_or(limit, |deadline| deadline.min(limit));
        self.step(Event::Tick)
    }

    /// Time passes, with everything that comes of it.
    #[track_caller]
    fn pass(&mut self, time: Duration) -> Vec<String> {
        let end = self.now + time;
        let mut all = Vec::new();
        while self.now < end && all.last().is_none_or(|last| last != "exit") {
            all.extend(self.wait(end - self.now));
        }
        all
    }

    /// Pod `a` enrolled in `n1` by a plugin.
    fn enrolled() -> Self {
        let mut script = Script::running();
        assert_eq!(script.add("a", "n1"), ["apply n1, remembered"]);
        assert_eq!(script.applied(), ["send 1: add a n1"]);
        assert_eq!(script.acked(1), ["reply 1: ambient", "publish a Some(Enabled)"]);
        script
    }

    fn state_of(&mut self, uid: &str) -> String {
        let status: view::Status = serde_json::from_str(&self.state.status()).unwrap();
        let pod = status.pods.into_iter().find(|pod| pod.uid == uid);
        pod.map_or("unknown".to_owned(), |pod| format!("{:?}", pod.state).to_lowercase())
    }
}

const NOTHING: [&str; 0] = [];

fn refused(text: &str) -> crate::error::Result<()> {
    Err(Error::of(Kind::Refused, text))
}

#[test]
fn an_add_goes_through_its_steps_in_order() {
    let mut script = Script::enrolled();
    assert_eq!(script.state_of("a"), "enrolled");
    assert_eq!(script.pass(Duration::from_secs(60)), NOTHING);
    // Again: looked at again, acknowledged at once.
    assert_eq!(script.add("a", "n1"), ["apply n1"]);
    assert_eq!(script.applied(), ["reply 2: ambient"]);
}

#[test]
fn starting_answers_not_ready_and_keeps_teardowns() {
    let mut script = Script::new();
    assert_eq!(script.add("a", "n1"), ["reply 1: not ready"]);
    assert_eq!(script.del("a", "n1"), NOTHING);
    assert_eq!(script.ztunnel(Zds::Connected(ConnectionId(1))), NOTHING);
    assert_eq!(script.source(Notice::Pod(Box::new(pod("a", true)))), NOTHING);
    assert_eq!(script.source(Notice::Synced), ["snapshot 1: ", "remove n1"]);
    assert_eq!(script.removed(), ["reply 2: done"]);
}

#[test]
fn a_pod_outside_the_mesh_is_passed() {
    let mut script = Script::running();
    script.source(Notice::Pod(Box::new(pod("b", false))));
    assert_eq!(script.add("b", "n2"), ["remember b", "reply 1: none"]);
    assert_eq!(
        script.add_as("b", "n2", false),
        [
            "reply 2: 100 pod default/b is not in the mesh: no enablement selector matches the labels of pod and namespace"
        ]
    );
    assert_eq!(script.del("b", "n2"), ["forget b", "reply 3: done"], "nothing was put in, nothing is looked for");
    assert_eq!(script.state_of("b"), "none");
}

#[test]
fn an_add_that_fails_is_undone_before_it_is_answered() {
    let mut script = Script::running();
    script.add("a", "n1");
    let failed = Outcome::Applied(Err(Error::new("no iptables")), None);
    assert_eq!(script.done(failed), ["remove n1"]);
    assert_eq!(script.removed(), ["reply 1: 101 the traffic rules could not be put in place: no iptables"]);
    assert_eq!(script.state_of("a"), "waiting");

    // The runtime comes back, and it works.
    assert_eq!(script.add("a", "n2"), ["apply n2, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n2"]);
    assert_eq!(script.answer(1, refused("port taken")), ["remove n2"]);
    assert_eq!(script.removed(), ["send 1: del a", "forget a", "reply 2: 100 ztunnel refused the pod: port taken"]);
    script.acked(1);

    script.add("a", "n3");
    assert_eq!(script.applied(), ["send 1: add a n3"]);
    assert_eq!(script.pass(Duration::from_millis(2999)), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(2)), ["remove n3"]);
    assert_eq!(
        script.removed(),
        ["send 1: del a", "forget a", "reply 3: 11 ztunnel did not acknowledge the pod within 3 s"]
    );

    // The late answers are of the past.
    assert_eq!(script.add("a", "n3"), ["apply n3, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n3"]);
    assert_eq!(script.acked(1), NOTHING, "to the first add");
    assert_eq!(script.acked(1), NOTHING, "to the del");
    assert_eq!(script.acked(1), ["reply 4: ambient", "publish a Some(Enabled)"]);
}

#[test]
fn without_ztunnel_an_add_fails_after_a_second() {
    let mut script = Script::running();
    script.ztunnel(Zds::Disconnected(ConnectionId(1), "test".to_owned()));
    script.add("a", "n1");
    assert_eq!(script.applied(), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(999)), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(2)), ["remove n1"]);
    assert_eq!(
        script.removed(),
        ["forget a", "reply 1: 11 no ztunnel is connected on ztunnel.sock; is the ztunnel pod running on this node?"]
    );
    // One that comes in time is enough.
    script.add("a", "n2");
    script.applied();
    script.pass(Duration::from_millis(900));
    assert_eq!(script.ztunnel(Zds::Connected(ConnectionId(2))), ["snapshot 2: add a n2"]);
    assert_eq!(script.acked(2), ["reply 2: ambient", "publish a Some(Enabled)"]);
}

#[test]
fn istios_plugin_is_answered_within_five_seconds_whatever_hangs() {
    let mut script = Script::running();
    script.add_as("a", "n1", false);
    assert_eq!(
        script.pass(Duration::from_millis(4701)),
        ["reply 1: 101 the traffic rules could not be put in place in time"]
    );
    assert_eq!(script.applied(), ["remove n1"], "undone when the work ends after all");
    assert_eq!(script.removed(), ["forget a"]);
}

#[test]
fn the_hosts_namespace_and_one_that_cannot_be_opened_are_refused() {
    let mut script = Script::running();
    script.netns.insert("host", Arc::new(Netns::own().unwrap()));
    assert_eq!(
        script.add("a", "host"),
        ["reply 1: 4 /var/run/netns/host is the network namespace of the host, not of a pod"]
    );
    let event = AddEvent { netns: "/gone".to_owned(), pod_name: "a".to_owned(), ..AddEvent::default() };
    let reply = script.reply();
    let gone = Err(Error::of(Kind::NotFound, "no such file"));
    assert_eq!(
        script.step(Event::Request(Request::Add(event, gone), reply)),
        ["reply 2: 5 the pod's network namespace /gone: no such file"]
    );
}

#[test]
fn the_newest_sandbox_wins_and_a_late_del_is_nobodys() {
    let mut script = Script::enrolled();
    assert_eq!(script.add("a", "n2"), ["apply n2, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n2"]);
    assert_eq!(script.acked(1), ["reply 2: ambient", "remove n1"]);
    assert_eq!(script.del("a", "n1"), ["reply 3: done"]);
    assert_eq!(script.removed(), NOTHING);
    assert_eq!(script.state_of("a"), "enrolled");
    // Nor is one that names the namespace of today, but a sandbox of yesterday.
    let (mut event, netns, reply) = script.attachment("a", "n2");
    event.container_id = "box-n1".to_owned();
    assert_eq!(script.step(Event::Request(Request::Del(event, Ok(netns)), reply)), ["reply 4: done"]);
    assert_eq!(script.del("a", "n2"), ["remove n2"]);
    assert_eq!(script.removed(), ["send 1: del a", "publish a None", "forget a", "reply 5: done"]);
    assert_eq!(script.state_of("a"), "waiting");
}

#[test]
fn a_newer_add_ends_the_one_that_waits() {
    let mut script = Script::running();
    script.add("a", "n1");
    assert_eq!(script.add("a", "n2"), ["reply 1: 11 a newer sandbox of the pod has come meanwhile"]);
    assert_eq!(script.applied(), ["apply n2, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n2"]);
    assert_eq!(script.acked(1), ["reply 2: ambient", "publish a Some(Enabled)", "remove n1"]);
    // And back again, while the old one is being cleaned.
    assert_eq!(script.add("a", "n1"), NOTHING);
    assert_eq!(script.removed(), ["apply n1, remembered"]);
    assert_eq!(script.applied(), ["send 1: add a n1"]);
    assert_eq!(script.acked(1), ["reply 3: ambient", "remove n2"]);
}

#[test]
fn a_requester_that_is_gone_before_the_rules_is_dropped_and_past_them_kept() {
    let mut script = Script::running();
    script.add("a", "n1");
    assert_eq!(script.step(Event::RequesterGone(1)), NOTHING);
    assert_eq!(script.applied(), ["remove n1"]);
    assert_eq!(script.removed(), ["forget a"]);

    script.add("a", "n2");
    script.applied();
    assert_eq!(script.step(Event::RequesterGone(2)), ["publish a Some(Pending)"]);
    assert_eq!(script.acked(1), ["publish a Some(Enabled)"]);
}

#[test]
fn a_running_pod_is_found_after_a_grace() {
    let mut script = Script::running();
    script.source(Notice::Pod(Box::new(pod("b", true))));
    assert_eq!(script.pass(Duration::from_millis(1999)), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(2)), ["walk a b"]);
    assert_eq!(script.walked(&[("b", "n2")]), ["apply n2, remembered"]);
    assert_eq!((script.state_of("a"), script.state_of("b")), ("lost".to_owned(), "applying".to_owned()));
    assert_eq!(script.applied(), ["send 1: add b n2", "publish b Some(Pending)"]);
    assert_eq!(script.state_of("b"), "pending");
    assert_eq!(script.acked(1), ["publish b Some(Enabled)"]);
    assert_eq!(script.pass(Duration::from_millis(600)), ["walk a"], "looked for again and again");
    // The plugin comes first after all: what the walk brings is old.
    assert_eq!(script.add("a", "n1"), ["apply n1, remembered"]);
    assert_eq!(script.walked(&[("a", "n3")]), NOTHING);
    assert_eq!(script.applied(), ["send 1: add a n1"]);
}

#[test]
fn a_pod_without_address_waits() {
    let mut script = Script::running();
    let mut object = pod("b", true);
    object.ips.clear();
    script.source(Notice::Pod(Box::new(object)));
    assert_eq!(script.pass(Duration::from_secs(3)), ["walk a"]);
    assert_eq!(script.state_of("b"), "waiting");
    // With the plugin's word it is enrolled all the same.
    assert_eq!(script.add("b", "n2"), ["apply n2, remembered"]);
}

#[test]
fn leaving_and_joining_the_mesh_while_running() {
    let mut script = Script::enrolled();
    assert_eq!(script.source(Notice::Pod(Box::new(pod("a", false)))), ["remove n1"]);
    assert_eq!(script.state_of("a"), "removing");
    assert_eq!(script.removed(), ["send 1: del a", "publish a None", "remember a"]);
    assert_eq!(script.state_of("a"), "none");
    script.acked(1);
    let labels = [("mesh".to_owned(), "on".to_owned())].into();
    let namespace = Namespace { name: "default".to_owned(), labels };
    assert_eq!(script.source(Notice::Namespace(namespace)), ["walk a"]);
    assert_eq!(script.walked(&[("a", "n1")]), ["apply n1, remembered"]);
    assert_eq!(script.source(Notice::NamespaceGone("default".to_owned())), NOTHING, "while something is in flight");
    assert_eq!(script.applied(), ["remove n1"]);
    assert_eq!(script.source(Notice::Pod(Box::new(pod("a", true)))), NOTHING);
    assert_eq!(script.removed(), ["apply n1"]);
    assert_eq!(script.applied(), ["send 1: add a n1", "publish a Some(Pending)"]);
}

#[test]
fn a_pod_that_is_gone_is_removed() {
    let mut script = Script::enrolled();
    assert_eq!(script.source(Notice::PodGone("a".to_owned())), ["remove n1"]);
    assert_eq!(script.done(Outcome::Removed(Err(Error::new("busy")))), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(6)), ["remove n1"], "retried");
    assert_eq!(script.removed(), ["send 1: del a", "publish a None", "forget a"]);
    assert_eq!(script.state_of("a"), "unknown");
    assert_eq!(script.del("a", "n1"), ["remove n1"], "a DEL of an unknown sandbox cleans its namespace");
}

#[test]
fn settings_and_identity_follow_the_pod() {
    let mut script = Script::enrolled();
    let mut object = pod("a", true);
    object.annotations.insert("ambient.istio.io/dns-capture".to_owned(), "false".to_owned());
    assert_eq!(script.source(Notice::Pod(Box::new(object.clone()))), ["apply n1 without dns"]);
    assert_eq!(script.applied(), NOTHING);
    object.service_account = "!sa".to_owned();
    assert_eq!(
        script.source(Notice::Pod(Box::new(object))),
        ["send 1: del a", "send 1: add a n1!sa"],
        "the same namespace again changes nothing in a ztunnel"
    );
    assert_eq!(script.acked(1), NOTHING);
    assert_eq!(script.acked(1), NOTHING);
    assert_eq!(script.state_of("a"), "enrolled");
}

#[test]
fn adds_go_to_the_newest_and_deletes_to_all() {
    let mut script = Script::enrolled();
    assert_eq!(script.ztunnel(Zds::Connected(ConnectionId(2))), ["snapshot 2: add a n1"]);
    assert_eq!(script.acked(2), NOTHING);
    script.source(Notice::Pod(Box::new(pod("b", true))));
    script.add("b", "n2");
    assert_eq!(script.applied(), ["send 2: add b n2"]);
    assert_eq!(
        script.ztunnel(Zds::Disconnected(ConnectionId(2), "gone".to_owned())),
        ["send 1: add b n2"],
        "the next newest gets what it missed"
    );
    script.sent.retain(|(id, _)| id.0 == 1);
    assert_eq!(script.acked(1), ["reply 2: ambient", "publish b Some(Enabled)"]);
    assert_eq!(script.ztunnel(Zds::Connected(ConnectionId(3))), ["snapshot 3: add a n1, add b n2"]);
    assert_eq!(script.ztunnel(Zds::Disconnected(ConnectionId(1), "gone".to_owned())), NOTHING);
    assert_eq!(script.state_of("a"), "pending", "an acknowledgement counts while its connection lives");
    script.acked(3);
    assert_eq!(script.state_of("a"), "enrolled");
    script.ztunnel(Zds::Connected(ConnectionId(4)));
    assert_eq!(script.del("a", "n1"), ["remove n1"]);
    assert_eq!(script.removed(), ["send 3: del a", "send 4: del a", "publish a None", "forget a", "reply 3: done"]);
}

#[test]
fn a_refusal_without_plugin_is_retried_with_back_off() {
    let mut script = Script::enrolled();
    script.ztunnel(Zds::Disconnected(ConnectionId(1), "gone".to_owned()));
    assert_eq!(script.state_of("a"), "pending");
    script.ztunnel(Zds::Connected(ConnectionId(2)));
    assert_eq!(script.answer(2, refused("lo is down")), NOTHING);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let before = script.now;
        assert_eq!(script.wait(Duration::from_secs(9)), ["send 2: add a n1"]);
        pauses.push((script.now - before).as_millis());
        script.answer(2, refused("lo is down"));
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000]);
    script.wait(Duration::from_secs(9));
    assert_eq!(script.acked(2), NOTHING);
    assert_eq!(script.state_of("a"), "enrolled");
}

#[test]
fn two_pods_never_have_one_namespace() {
    let mut script = Script::enrolled();
    script.source(Notice::Pod(Box::new(pod("b", true))));
    assert_eq!(script.add("b", "n1"), ["remove n1"]);
    assert_eq!(script.removed(), ["send 1: del a", "publish a None", "forget a"]);
    assert_eq!(script.pass(Duration::from_millis(20)), ["apply n1, remembered"]);
    assert_eq!(script.applied(), ["send 1: add b n1"]);
}

#[test]
fn an_unknown_pod_is_looked_up() {
    let mut script = Script::running();
    assert_eq!(script.add("b", "n2"), ["look up default/b"]);
    let name = PodName { namespace: "default".to_owned(), name: "b".to_owned() };
    assert_eq!(
        script.source(Notice::LookedUp(name.clone(), None)),
        ["reply 1: 11 pod default/b is not known to the test"],
        "never: not in the mesh"
    );
    assert_eq!(script.add("b", "n2"), ["look up default/b"]);
    assert_eq!(script.source(Notice::Pod(Box::new(pod("b", true)))), ["apply n2, remembered"]);
    assert_eq!(script.source(Notice::LookedUp(name, None)), NOTHING);
    // Istio's plugin gives no uid: with another namespace it may be a successor of the same name.
    let mut script = Script::enrolled();
    assert_eq!(script.add_as("a", "n2", false), ["look up default/a"]);
    assert_eq!(
        script.pass(Duration::from_secs(4)),
        ["reply 2: 11 the test did not answer in time when asked for pod default/a"]
    );
}

#[test]
fn a_restart_finds_everything_in_one_walk() {
    let name = |name: &str| PodName { namespace: "default".to_owned(), name: name.to_owned() };
    let published = [
        ("a".to_owned(), (name("a"), Redirection::Enabled)),
        ("gone".to_owned(), (name("gone"), Redirection::Enabled)),
        ("lost".to_owned(), (name("lost"), Redirection::Enabled)),
    ];
    let records = vec![record("a"), record("left"), record("vanished")];
    let mut script = Script::after(config(), records, published.into());
    script.ztunnel(Zds::Connected(ConnectionId(1)));
    for object in [pod("a", true), pod("lost", true), pod("left", false), pod("new", true)] {
        script.source(Notice::Pod(Box::new(object)));
    }
    assert_eq!(script.source(Notice::Synced), ["walk a left lost vanished", "publish gone None"]);
    assert_eq!(script.add("new", "n9"), ["reply 1: not ready"]);
    assert_eq!(
        script.walked(&[("a", "n1"), ("left", "n2")]),
        ["apply n1 without dns", "remove n2", "forget vanished", "snapshot 1: add a n1, keep lost"],
        "the settings are those of the earlier run"
    );
    assert_eq!(script.state_of("lost"), "lost");
    assert_eq!(script.acked(1), NOTHING);
    assert_eq!(script.applied(), NOTHING);
    assert_eq!(script.state_of("a"), "enrolled");
    assert_eq!(script.removed(), ["remember left"]);
    script.work.clear();
    assert_eq!(script.state_of("vanished"), "unknown");
    assert_eq!(script.pass(Duration::from_millis(500)), ["walk lost"]);
    assert_eq!(script.walked(&[("lost", "n3")]), ["apply n3, remembered"]);
    assert_eq!(script.applied(), ["send 1: add lost n3"]);
}

#[test]
fn checks_ask_the_dataplane() {
    let mut script = Script::enrolled();
    assert_eq!(script.check("a", "n1"), ["check n1"]);
    assert_eq!(script.done(Outcome::Checked(Ok(Differences::default()), None)), ["reply 2: done"]);
    script.check("a", "n1");
    assert_eq!(
        script.done(Outcome::Checked(Ok(different("chain X is missing")), None)),
        ["reply 3: 100 the traffic rules are not in place: chain X is missing", "apply n1"]
    );
    assert_eq!(script.state_of("a"), "lost");
    assert_eq!(script.applied(), NOTHING);
    assert_eq!(script.state_of("a"), "enrolled");
    assert_eq!(script.check("stranger", "n7"), ["reply 4: done"]);
    script.source(Notice::Pod(Box::new(pod("b", true))));
    assert_eq!(
        script.check("b", "n8"),
        ["reply 5: 100 the pod should be in the mesh and is not: it has not been enrolled"]
    );
}

#[test]
fn verification_comes_back_every_interval_and_repairs() {
    let mut script =
        Script::after(Config { verify_interval: Duration::from_secs(30), ..config() }, Vec::new(), Published::new());
    script.source(Notice::Synced);
    script.ztunnel(Zds::Connected(ConnectionId(1)));
    script.source(Notice::Pod(Box::new(pod("a", true))));
    script.add("a", "n1");
    script.applied();
    assert_eq!(script.acked(1), ["reply 1: ambient", "publish a Some(Enabled)", "check n1"]);
    script.done(Outcome::Checked(Ok(Differences::default()), None));
    assert_eq!(script.pass(Duration::from_millis(29_990)), NOTHING);
    assert_eq!(script.pass(Duration::from_millis(20)), ["check n1", "compare a"]);
    let outcome = Outcome::Checked(Ok(different("gone")), None);
    assert_eq!(script.done(outcome), ["apply n1"]);
    assert_eq!(script.done(Outcome::Compared(Ok(BTreeMap::new()))), NOTHING);
    assert_eq!(script.done(Outcome::Applied(Err(Error::new("no")), None)), NOTHING);
    assert_eq!(script.state_of("a"), "lost");
    assert_eq!(script.pass(Duration::from_millis(6)), ["apply n1"]);
    assert_eq!(script.applied(), NOTHING, "the annotation stayed");
    assert_eq!(script.state_of("a"), "enrolled");
}

#[test]
fn gc_ends_what_is_neither_valid_nor_there() {
    let mut script = Script::enrolled();
    let gc = |script: &mut Script, ids: &[&str]| {
        let event = GcEvent { container_ids: ids.iter().map(|id| (*id).to_owned()).collect() };
        let reply = script.reply();
        script.step(Event::Request(Request::Gc(event), reply))
    };
    assert_eq!(gc(&mut script, &["box-n1"]), ["reply 2: done"]);
    assert_eq!(gc(&mut script, &[]), ["probe /var/run/netns/n1"]);
    assert_eq!(script.done(Outcome::Probed(Vec::new())), ["reply 3: done"]);
    gc(&mut script, &["other"]);
    let path = crate::agent::event::Path {
        uid: "a".to_owned(),
        path: "/var/run/netns/n1".to_owned(),
        id: script.netns("n1").id(),
    };
    assert_eq!(script.done(Outcome::Probed(vec![path])), ["remove n1", "reply 4: done"]);
}

#[test]
fn a_stop_finishes_what_runs_and_takes_nothing_new() {
    let mut script = Script::running();
    script.add("a", "n1");
    assert_eq!(script.step(Event::Stop(Stop::Signal("SIGTERM"))), NOTHING);
    assert_eq!(script.add("b", "n2"), ["reply 2: not ready"]);
    assert_eq!(script.applied(), ["send 1: add a n1"]);
    assert_eq!(script.acked(1), ["reply 1: ambient", "publish a Some(Enabled)", "exit"]);

    let mut script = Script::running();
    script.add("a", "n1");
    script.step(Event::Stop(Stop::Signal("SIGTERM")));
    assert_eq!(script.pass(Duration::from_secs(4)).last().map(String::as_str), Some("exit"), "whatever hangs");
    assert_eq!(Script::running().step(Event::Stop(Stop::Signal("SIGINT"))), ["exit"]);

    // What the source has not told yet is not gone.
    let name = PodName { namespace: "default".to_owned(), name: "a".to_owned() };
    let published = [("a".to_owned(), (name, Redirection::Enabled))];
    let mut script = Script::after(config(), Vec::new(), published.into());
    let namespace = Namespace { name: "default".to_owned(), labels: StringMap::new() };
    assert_eq!(script.source(Notice::Namespace(namespace.clone())), NOTHING);
    assert_eq!(script.step(Event::Stop(Stop::Signal("SIGTERM"))), ["exit"]);
    assert_eq!(script.source(Notice::Namespace(namespace)), ["exit"]);
}

/// A pod `default/s` with a sidecar and one more annotation.
fn with_sidecar(annotation: &str) -> Object {
    let text = format!(
        r#"{{"kind":"Pod","metadata":{{"name":"s","uid":"s","annotations":{{"sidecar.istio.io/status":"{{}}"{annotation}}}}},
            "spec":{{"containers":[{{"name":"istio-proxy"}}]}},"status":{{"podIP":"10.0.0.9"}}}}"#
    );
    crate::pod::object::decode(&text).unwrap().pods.remove(0)
}

#[test]
fn a_pod_with_a_sidecar_is_redirected_and_then_left_alone() {
    let mut script = Script::running();
    script.source(Notice::Pod(Box::new(with_sidecar(""))));
    assert_eq!(script.add("s", "n1"), ["redirect n1 Redirect of [10.0.0.9]"]);
    assert_eq!(script.add_as("s", "n1", false), NOTHING, "the same work serves both");
    assert_eq!(script.done(Outcome::Redirected(Ok(()))), ["reply 1: sidecar", "reply 2: done"]);
    assert_eq!(script.check("s", "n1"), ["inspect n1 Redirect"]);
    assert_eq!(script.done(Outcome::Inspected(Ok(Vec::new()))), ["reply 3: done"]);
    // Again, and into a new sandbox.
    assert_eq!(script.add("s", "n1"), ["redirect n1 Redirect of [10.0.0.9]"]);
    assert_eq!(script.add("s", "n2"), ["redirect n2 Redirect of [10.0.0.9]"]);
    assert_eq!(script.done(Outcome::Redirected(Ok(()))), ["reply 4: sidecar"]);
    assert_eq!(
        script.done(Outcome::Redirected(Err(Error::new("no iptables")))),
        ["reply 5: 101 the redirection to the sidecar could not be put in place: no iptables"]
    );
    assert_eq!(script.pass(Duration::from_secs(60)), ["walk a"], "which has not come yet");
}

#[test]
fn a_bad_annotation_of_a_sidecar_fails_the_add() {
    let mut script = Script::running();
    script.source(Notice::Pod(Box::new(with_sidecar(r#","sidecar.istio.io/interceptionMode":"BOTH""#))));
    assert_eq!(
        script.add("s", "n1"),
        [
            "reply 1: 100 pod default/s: annotation sidecar.istio.io/interceptionMode: \"BOTH\" is not allowed; it takes \
          REDIRECT or TPROXY"
        ]
    );
    // Put right while the runtime tries again.
    script.source(Notice::Pod(Box::new(with_sidecar(r#","sidecar.istio.io/interceptionMode":"TPROXY""#))));
    assert_eq!(script.add("s", "n1"), ["redirect n1 Tproxy of [10.0.0.9]"]);
}
