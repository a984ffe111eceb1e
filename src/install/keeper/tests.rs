//! One pass after the other on a node's directories, and what the owner is told.

use super::*;
use crate::install::tests::{BRIDGE, Node};
use std::cell::RefCell;
use std::rc::Rc;

type Told = Rc<RefCell<Vec<Notice>>>;

fn work(options: Options) -> (Work<impl Fn(Notice)>, Told) {
    let told = Told::default();
    let teller = Rc::clone(&told);
    (Work::new(options, move |notice| teller.borrow_mut().push(notice)), told)
}

fn ready() -> Notice {
    Notice::Readiness(Vec::new())
}

/// The one reason why the installation is not ready.
#[track_caller]
fn unready(told: &Told, expected: &str) {
    let told = told.take();
    let [Notice::Readiness(reasons)] = &told[..] else { panic!("{told:?}") };
    assert!(reasons.len() == 1 && reasons[0].contains(expected), "{reasons:?}");
}

#[test]
fn a_pass_installs_and_the_next_has_nothing_to_tell() {
    let node = Node::new();
    node.write("net/10-a.conflist", BRIDGE, 0o644);
    let (mut work, told) = work(Options { kubeconfig: Some(node.kubeconfig()), ..node.options() });
    work.pass(INTERVAL);
    assert_eq!(told.take(), [Notice::Installed(Outcome::Success), ready()]);
    assert!(node.read("net/10-a.conflist").contains("istio-cni"));
    assert_eq!(node.read("bin/istio-cni"), "our executable");
    assert_eq!(node.mode("run/istio-cni-kubeconfig"), 0o600);
    work.pass(INTERVAL);
    assert_eq!(told.take(), []);
}

#[test]
fn only_what_an_event_concerns_is_looked_at() {
    let node = Node::new();
    node.write("net/10-a.conflist", BRIDGE, 0o644);
    let (mut work, told) = work(Options { kubeconfig: Some(node.kubeconfig()), ..node.options() });
    let soon = || clock::now() + INTERVAL / 2;
    let due = |work: &Work<_>| [&work.binary, &work.kubeconfig, &work.conf].map(|part| part.due.unwrap() < soon());
    work.pass(INTERVAL);
    assert_eq!(due(&work), [false; 3]);
    for (dir, expected) in [
        ("elsewhere", [false, false, false]),
        ("net", [false, false, true]),
        // The chain's other plugins are of no interest while the configuration is as it should be.
        ("bin", [true, false, false]),
        ("account", [false, true, false]),
    ] {
        work.changed(&node.path(dir));
        assert_eq!(due(&work), expected, "{dir}");
        work.pass(INTERVAL);
        assert_eq!(due(&work), [false; 3]);
    }
    // A configuration that waits for the chain's plugins is looked at when the bin dir changes.
    work.conf.problem = Some("it waits".to_owned());
    work.changed(&node.path("bin"));
    assert_eq!(due(&work), [true, false, true]);
    told.take();
}

#[test]
fn what_is_wrong_is_told_once_and_its_end_too() {
    let node = Node::new();
    let (mut work, told) = work(node.options());
    let again = |work: &mut Work<_>| {
        for part in [&mut work.binary, &mut work.kubeconfig, &mut work.conf] {
            part.due = None;
        }
        work.pass(INTERVAL);
    };
    work.pass(INTERVAL);
    unready(&told, "there is no valid one");
    again(&mut work);
    assert_eq!(told.take(), []);
    // A file that runtimes fail on comes first: our entry is in the other one, and may not be read.
    node.write("net/05-x.conflist", "{", 0o644);
    node.write("net/10-a.conflist", BRIDGE, 0o644);
    again(&mut work);
    assert!(node.read("net/10-a.conflist").contains("istio-cni"));
    unready(&told, "05-x.conflist");
    again(&mut work);
    assert_eq!(told.take(), []);
    node.write("net/05-x.conflist", "", 0o644);
    std::fs::remove_dir_all(node.path("net")).unwrap();
    std::fs::create_dir(node.path("net")).unwrap();
    node.write("net/10-a.conflist", BRIDGE, 0o644);
    again(&mut work);
    assert_eq!(told.take(), [Notice::Installed(Outcome::Success), ready()]);
}

#[test]
fn a_failure_is_counted_when_it_is_a_new_one() {
    let node = Node::new();
    node.write("net/10-a.conflist", BRIDGE, 0o644);
    let (mut work, told) = work(Options { executable: node.path("nowhere"), ..node.options() });
    work.pass(INTERVAL);
    let [Notice::Installed(Outcome::BinaryFailed), Notice::Readiness(reasons)] = &told.take()[..] else {
        panic!("the failure is not told");
    };
    // No configuration names a plugin that is not there.
    assert_eq!(node.read("net/10-a.conflist"), BRIDGE);
    assert!(reasons[0].contains("nowhere") && reasons[1].contains("waits for the plugin's executable"), "{reasons:?}");
    work.binary.due = None;
    work.pass(INTERVAL);
    assert_eq!(told.take(), []);
    work.options.executable = node.path("ferrule");
    (work.binary.due, work.conf.due) = (None, None);
    work.pass(INTERVAL);
    assert_eq!(told.take(), [Notice::Installed(Outcome::Success), ready()]);
}

#[test]
fn an_executable_that_keeps_being_replaced_is_not_copied_as_fast_as_we_can() {
    let node = Node::new();
    node.write("net/10-a.conflist", BRIDGE, 0o644);
    let (mut work, told) = work(node.options());
    let mut copies = 0;
    for round in 0..20 {
        node.write("bin/istio-cni", &format!("another executable {round}"), 0o755);
        work.binary.due = None;
        work.pass(INTERVAL);
        copies += usize::from(node.read("bin/istio-cni") == "our executable");
    }
    assert!((5..=7).contains(&copies), "{copies}");
    let last = told.take().pop();
    assert!(matches!(last, Some(Notice::Readiness(reasons)) if reasons[0].contains("keeps being replaced")));
}

#[test]
fn outcomes_have_the_names_of_istios_metric() {
    let labels = [Outcome::Success, Outcome::BinaryFailed, Outcome::KubeconfigFailed, Outcome::ConfFailed];
    let expected = ["SUCCESS", "COPY_BINARIES_FAILURE", "CREATE_KUBECONFIG_FAILURE", "CREATE_CNI_CONFIG_FAILURE"];
    assert_eq!(labels.map(Outcome::label), expected);
}
