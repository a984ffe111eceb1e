//! The state as scripts: what happens on the left, what it does about it on the right.

mod add;
mod attachments;
mod life;
mod node;
mod outside;
mod random;
mod repair;
mod time;
mod watch;
mod ztunnels;

use super::*;
use crate::cni::event::GcEvent;
use crate::cni::event::{AddEvent, AttachmentEvent};
use crate::cni::outside::Outside;
use crate::dataplane::inpod::Differences;
use crate::error::{Error, Kind};
use crate::node::event::{Answer, Event, Notice, Outcome, Request, Stop, Walked, Work};
use crate::node::records::{Published, Record};
use crate::node::redirection::Redirection;
use crate::pod::selector::EnablementSelectors;
use crate::pod::types::{Namespace, Pod as Object, PodName};
use crate::sys::netns::Netns;
use crate::zds::server::{ConnectionId, Notice as Zds, Request as Told};
use std::sync::Arc;
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
            exclude_runtime_classes: Vec::new(),
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
        native_nftables: false,
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
        interface: String::new(),
        path: format!("/var/run/netns/{uid}"),
        netns: None,
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
            if let Action::Work(id, Work::Note(uid, record, _)) = action {
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
                    Work::Apply(_, _, record) | Work::Check(_, _, _, record) => record.clone(),
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
                    Work::Note(uid, ..) => format!("note {uid}"),
                    Work::Enter { uid, addresses: ips, inside, .. } => {
                        let inside =
                            inside.as_ref().map_or(String::new(), |n| format!(" inside {}", self.name_of(n.id())));
                        format!("enter {uid} {ips:?}{inside}")
                    }
                    Work::Leave(uid) => format!("leave {uid}"),
                    Work::Host { keep: None } => "host".to_owned(),
                    Work::Host { keep: Some(keep) } if keep.uids.is_empty() => "host, pruned".to_owned(),
                    Work::Host { keep: Some(keep) } => {
                        let uids: Vec<&str> = keep.uids.iter().map(String::as_str).collect();
                        format!("host, pruned but for {}", uids.join(" "))
                    }
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
            Action::Announce(pod_event) if pod_event.component == "cni-repair" => {
                format!("announce {}: {} {}", pod_event.uid, pod_event.reason, pod_event.message)
            }
            Action::Announce(pod_event) => format!("announce {}: {}", pod_event.uid, pod_event.message),
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
                Answer::Decided(answer) => format!("reply {}: {}", to.id, answer.action.word()),
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
        self.done(Outcome::Walked(Ok(Walked { found, ..Walked::default() })))
    }

    /// This work ends like this.
    #[track_caller]
    fn done_at(&mut self, text: &str, outcome: Outcome) -> Vec<String> {
        let at = self.work.iter().position(|(_, work, _)| work == text).expect("it was handed out");
        let (id, ..) = self.work.remove(at);
        self.step(Event::Done(id, outcome))
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

    /// Pod `a` is enrolled in `n1` where pods are verified, and has just been looked at.
    fn verified_every(interval: Duration) -> Self {
        let config = Config { verify_interval: interval, ..config() };
        let mut script = Script::after(config, Vec::new(), Published::new());
        script.source(Notice::Synced);
        script.ztunnel(Zds::Connected(ConnectionId(1)));
        script.source(Notice::Pod(Box::new(pod("a", true))));
        script.add("a", "n1");
        script.applied();
        assert_eq!(script.acked(1), ["reply 1: ambient", "publish a Some(Enabled)", "check n1"]);
        script.done(Outcome::Checked(Ok(Differences::default()), None));
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
