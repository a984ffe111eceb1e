//! Sandboxes with several attachments, each with an ADD and a DEL of its own, and the addresses of all of them.

use super::*;
use crate::node::event::HostLook;

impl Script {
    /// A node with pod `a` in the mesh, whose address is not known to the source.
    fn with_unaddressed_pod() -> Self {
        let mut script =
            Script::after(Config { cluster: true, host_side: true, ..config() }, Vec::new(), Published::new());
        script.step(Event::Tick);
        script.done(Outcome::Hosted(Ok(HostLook::default())));
        script.source(Notice::Namespace(Namespace { name: "default".to_owned(), labels: StringMap::new() }));
        script.source(Notice::Synced);
        script.done(Outcome::Hosted(Ok(HostLook::default())));
        script.ztunnel(Zds::Connected(ConnectionId(1)));
        script.source(Notice::Pod(Box::new(Object { ips: Vec::new(), ..pod("a", true) })));
        script
    }

    fn attach(&mut self, netns: &'static str, interface: &str, ip: &str) -> Vec<String> {
        let event = AddEvent {
            netns: format!("/var/run/netns/{netns}"),
            pod_name: "a".to_owned(),
            pod_namespace: "default".to_owned(),
            ips: serde_json::json!([{ "Address": { "IP": ip } }]),
            container_id: format!("box-{netns}"),
            interface: interface.to_owned(),
            pod_uid: "a".to_owned(),
            decide: true,
        };
        let (netns, reply) = (self.netns(netns), self.reply());
        self.step(Event::Request(Request::Add(event, Ok(netns)), reply))
    }

    fn detach(&mut self, netns: &'static str, interface: &str) -> Vec<String> {
        let (event, netns, reply) = self.attachment("a", netns);
        let event = AttachmentEvent { interface: interface.to_owned(), pod_uid: "a".to_owned(), ..event };
        self.step(Event::Request(Request::Del(event, Ok(netns)), reply))
    }

    fn with_two_attachments() -> Self {
        let mut script = Script::with_unaddressed_pod();
        assert_eq!(script.attach("n1", "eth0", "10.0.0.1"), ["apply n1, remembered"]);
        assert_eq!(script.applied(), ["send 1: add a n1"]);
        assert_eq!(script.acked(1), ["enter a [10.0.0.1]"]);
        assert_eq!(script.done(Outcome::Entered(Ok(()))), ["reply 1: ambient", "publish a Some(Enabled)"]);
        assert_eq!(script.attach("n1", "net1", "192.168.5.2"), ["apply n1, remembered"]);
        assert_eq!(script.applied(), ["enter a [10.0.0.1, 192.168.5.2]"]);
        assert_eq!(script.done(Outcome::Entered(Ok(()))), ["reply 2: ambient"]);
        script
    }
}

#[test]
fn only_the_first_attachment_ends_an_enrolment() {
    let mut script = Script::with_two_attachments();
    assert_eq!(script.detach("n1", "net1"), ["reply 3: done", "enter a [10.0.0.1] inside n1"]);
    script.done(Outcome::Entered(Ok(())));
    assert_eq!(script.state_of("a"), "enrolled");
    assert_eq!(script.detach("n1", "net2"), ["reply 4: done"], "nobody told of it");
    assert_eq!(script.detach("n1", "eth0"), ["leave a"]);
    let over = ["send 1: del a", "publish a None", "forget a", "reply 5: done"];
    assert_eq!(script.done(Outcome::Left(Ok(()))), over);
    // That may be any interface, where the plugin is in the chain of no other.
    let mut script = Script::with_unaddressed_pod();
    script.attach("n1", "net1", "10.0.0.1");
    assert_eq!(script.detach("n1", "eth0"), ["reply 2: done"]);
    assert_eq!(script.detach("n1", "net1"), ["reply 1: 11 the sandbox was torn down meanwhile"]);
}

#[test]
fn what_the_source_says_is_what_counts_once_it_says_it() {
    let mut script = Script::with_two_attachments();
    assert_eq!(script.source(Notice::Pod(Box::new(pod("a", true)))), ["enter a [10.0.0.1] inside n1"]);
    script.done(Outcome::Entered(Ok(())));
    assert_eq!(script.attach("n1", "net2", "192.168.6.2"), ["apply n1, remembered"]);
    assert_eq!(script.applied(), ["reply 3: ambient"]);
}

#[test]
fn addresses_of_an_earlier_sandbox_do_not_stay() {
    let ips = |script: &Script| script.state.pods.get("a").map(crate::node::pod::Pod::addresses).unwrap_or_default();
    let mut script = Script::with_unaddressed_pod();
    script.source(Notice::Pod(Box::new(pod("a", true))));
    // Made anew: the source still has the old address.
    assert_eq!(script.attach("n2", "eth0", "10.0.0.2"), ["apply n2, remembered"]);
    let record = script.work[0].2.clone().unwrap();
    assert_eq!(record.ips, ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
    script.applied();
    assert_eq!(script.acked(1), ["enter a [10.0.0.2]"]);
    script.done(Outcome::Entered(Ok(())));
    assert_eq!(ips(&script), record.ips);
    script.source(Notice::Pod(Box::new(pod("a", true))));
    assert_eq!(ips(&script), record.ips, "told again");
    let new = Object { ips: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()], ..pod("a", true) };
    assert_eq!(script.source(Notice::Pod(Box::new(new.clone()))), ["enter a [10.0.0.2, fd00::2] inside n2"]);
    assert_eq!(ips(&script), new.ips);
}
