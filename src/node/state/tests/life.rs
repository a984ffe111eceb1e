//! From the start of the agent to its stop, and the looks in between.

use super::*;
use crate::node::event::{Subject, Unread};

#[test]
fn starting_answers_not_ready_and_keeps_teardowns() {
    let mut script = Script::new();
    assert_eq!(script.add("a", "n1"), ["reply 1: not ready"]);
    assert_eq!(script.del("a", "n1"), NOTHING);
    assert_eq!(script.ztunnel(Zds::Connected(ConnectionId(1))), NOTHING);
    assert_eq!(script.source(Notice::Pod(Box::new(pod("a", true)))), NOTHING);
    assert_eq!(script.source(Notice::Synced), ["snapshot 1: ", "reply 2: done"]);
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
    assert_eq!(script.source(Notice::Synced), ["walk a left lost", "publish gone None", "forget vanished"]);
    assert_eq!(script.add("new", "n9"), ["reply 1: not ready"]);
    assert_eq!(
        script.walked(&[("a", "n1"), ("left", "n2")]),
        ["apply n1 without dns", "remove n2", "snapshot 1: add a n1, keep lost"],
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
fn a_file_that_cannot_be_read_is_no_proof_that_a_pod_is_gone() {
    let name = PodName { namespace: "default".to_owned(), name: "b".to_owned() };
    let published = [("b".to_owned(), (name, Redirection::Enabled))];
    let start = || {
        let mut script = Script::after(config(), vec![record("a"), record("c")], published.clone().into());
        script.ztunnel(Zds::Connected(ConnectionId(1)));
        script.source(Notice::Pod(Box::new(pod("a", true))));
        script.source(Notice::Pod(Box::new(pod("c", false))));
        script.source(Notice::Unread(vec![Unread { subject: Subject::File, text: "b.yaml: broken".to_owned() }]));
        assert_eq!(script.source(Notice::Synced), NOTHING);
        assert_eq!(script.pass(Duration::from_secs(60)), NOTHING, "nobody is taken out, no snapshot is sent");
        let why = "pod default/b was in the mesh, and is not by what the test says; a file there cannot be read: b.yaml: broken";
        assert_eq!(script.state.not_ready(), [format!("starting: {why}")]);
        script
    };
    let mut mended = start();
    assert_eq!(mended.source(Notice::Pod(Box::new(pod("b", true)))), NOTHING, "c may be by its namespace's labels");
    assert_eq!(mended.source(Notice::Unread(Vec::new())), ["walk a b c"]);
    let mut removed = start();
    assert_eq!(removed.source(Notice::Unread(Vec::new())), ["walk a c", "publish b None"]);
}

#[test]
fn a_pod_that_cannot_be_read_stays_what_it_was() {
    let unread = |subject| Notice::Unread(vec![Unread { subject, text: "it is broken".to_owned() }]);
    for subject in [Subject::Pod("a".to_owned()), Subject::Namespace("default".to_owned())] {
        let mut script =
            Script::after(config(), vec![Record { container_id: String::new(), ..record("a") }], Published::new());
        script.ztunnel(Zds::Connected(ConnectionId(1)));
        script.source(unread(subject.clone()));
        // It is looked for, and whatever comes of that, nothing is changed.
        assert_eq!(script.source(Notice::Synced), ["walk a"]);
        assert_eq!(script.walked(&[("a", "n1")]), ["snapshot 1: keep a"], "{subject:?}");
        assert_eq!(script.pass(Duration::from_secs(60)), NOTHING, "{subject:?}");
        assert_eq!(script.state.not_ready(), NOTHING);
        // Its sandbox is torn down all the same.
        assert_eq!(script.del("a", "n1"), ["send 1: del a", "forget a", "reply 1: done"], "{subject:?}");
    }
    // Nobody is admitted by what was known before.
    let mut script = Script::enrolled();
    script.source(unread(Subject::Pod("a".to_owned())));
    assert_eq!(script.add("a", "n2"), ["look up default/a"]);
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
    let mut script = Script::verified_every(Duration::from_secs(30));
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
    let path = crate::node::event::NetnsPath {
        uid: "a".to_owned(),
        path: "/var/run/netns/n1".to_owned(),
        id: script.netns("n1").id(),
    };
    assert_eq!(
        script.done(Outcome::Probed(vec![path])),
        ["send 1: del a", "publish a None", "forget a", "reply 4: done"]
    );
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
