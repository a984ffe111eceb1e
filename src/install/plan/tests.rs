//! Plans are carried out on listings in memory: what a node's directory would look like.
#![expect(clippy::disallowed_methods, reason = "fixtures are read, and written in update mode")]

mod runtime;

use super::*;
use crate::install::entry::Entry;
use crate::install::tests::entry;
use crate::sys::file::HostRoot;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/test-fixtures/install");

const BRIDGE: &str = r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge"},{"type":"portmap"}]}"#;
const FLANNEL: &str = r#"{"name":"b","plugins":[{"type":"flannel"}]}"#;
const SINGLE: &str = r#"{"cniVersion":"0.4.0","name":"c","type":"ptp","ipam":{}}"#;
const OURS: &str = r#"{"type":"istio-cni","name":"istio-cni"}"#;

fn options() -> Options {
    Options {
        host_root: HostRoot::new("/host"),
        net_dir: PathBuf::new(),
        bin_dir: PathBuf::new(),
        run_dir: PathBuf::new(),
        mode: Mode::Chained,
        conf_name: None,
        conf_group_read: false,
        entry: Entry {
            enablement_selectors: serde_json::json!([
                {"podSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}}
            ]),
            exclude_namespaces: vec!["kube-system".to_owned()],
            ..entry()
        },
        kubeconfig: None,
        executable: PathBuf::new(),
        settle: Duration::ZERO,
    }
}

fn owned(file: &str) -> Options {
    Options { mode: Mode::Owned { file: file.to_owned() }, ..options() }
}

fn found(content: &str) -> Found {
    let access = Access { mode: 0o644, owner: Some((7, 8)) };
    Found { content: Ok(content.as_bytes().to_vec()), access, age: Duration::from_secs(60) }
}

fn listing(files: &[(&str, &str)]) -> Listing {
    let net = files.iter().map(|(name, content)| ((*name).to_owned(), found(content)));
    Listing { net: net.collect(), saved: BTreeMap::new(), plugins: None }
}

/// Carries steps out, checking after each that a runtime which has a configuration keeps one.
fn apply(listing: &mut Listing, steps: &[Step]) {
    let valid = |listing: &Listing| {
        let mut confs = listing.net.iter().filter_map(|(name, found)| Some((name, found.content.as_ref().ok()?)));
        confs.any(|(name, content)| Conf::parse(name, content).is_ok_and(|conf| conf.has_others()))
    };
    let was_valid = valid(listing);
    for step in steps {
        let files = match step.place {
            Place::Net => &mut listing.net,
            Place::Saved => &mut listing.saved,
        };
        match &step.change {
            Change::Remove => {
                files.remove(&step.name).unwrap();
            }
            Change::Write(text, access) => {
                files.insert(step.name.clone(), Found { access: *access, ..found(text) });
            }
        }
        assert!(!was_valid || valid(listing), "no configuration left after {step:?}");
    }
}

fn text(listing: &Listing, name: &str) -> String {
    let content = listing.net.get(name).map(|found| found.content.clone().unwrap());
    String::from_utf8(content.unwrap_or_default()).unwrap()
}

fn names(listing: &Listing) -> Vec<&str> {
    listing.net.keys().map(String::as_str).collect()
}

/// Installs until nothing is left to do, and says where that ended.
fn settle(listing: &mut Listing, options: &Options) -> State {
    let plan = install(listing, options);
    apply(listing, &plan.steps);
    let again = install(listing, options);
    assert_eq!(again.steps, [], "a second pass has nothing to do");
    again.state
}

#[track_caller]
fn installed(state: &State, expected: &str) {
    let State::Installed { primary, .. } = state else { panic!("{state:?}") };
    assert_eq!(primary, expected);
}

/// How often our plugin is in a file's own chain.
fn ours(listing: &Listing, name: &str) -> usize {
    let text = text(listing, name);
    Conf::parse(name, text.as_bytes()).unwrap().types().iter().filter(|kind| **kind == "istio-cni").count()
}

fn files(dir: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return BTreeMap::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    paths.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect()
}

/// The primaries that people run, and files nobody should write: in, out, again, and back. With `UPDATE_FIXTURES` set
/// the expected files are written anew, for review.
#[test]
fn fixtures_in_out_and_back() {
    let update = std::env::var_os("UPDATE_FIXTURES").is_some();
    let mut cases = 0;
    for case in std::fs::read_dir(FIXTURES).unwrap() {
        let dir = case.unwrap().path();
        let before = files(&dir.join("in"));
        let before: Vec<_> = before.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let mut listing = listing(&before);
        let original = listing.net.clone();
        settle(&mut listing, &options());
        let out: BTreeMap<_, _> = listing.net.keys().map(|name| (name.clone(), text(&listing, name))).collect();
        if update {
            let _ = std::fs::remove_dir_all(dir.join("out"));
            std::fs::create_dir(dir.join("out")).unwrap();
            out.iter().for_each(|(name, text)| std::fs::write(dir.join("out").join(name), text).unwrap());
        }
        assert_eq!(out, files(&dir.join("out")), "{}", dir.display());
        let ours: usize = listing.net.keys().map(|name| ours(&listing, name)).sum();
        assert_eq!(ours, 1, "{}", dir.display());
        let steps = remove(&listing, &options());
        apply(&mut listing, &steps);
        for (name, found) in &original {
            let now = &listing.net[name];
            assert_eq!(now.content, found.content, "{}/{name}", dir.display());
            assert_eq!(now.access, found.access, "{}/{name}", dir.display());
        }
        assert_eq!(listing.net.len(), original.len(), "{}", dir.display());
        assert!(listing.saved.is_empty());
        assert_eq!(remove(&listing, &options()), []);
        cases += 1;
    }
    assert!(cases >= 30, "{cases}");
}

#[test]
fn files_that_no_runtime_loads() {
    let check = |name: &str, content: &str, expected: Option<&str>| {
        let got = Conf::parse(name, content.as_bytes()).err().map(|e| e.to_string());
        match (&got, expected) {
            (Some(got), Some(expected)) => assert!(got.starts_with(expected), "{got}"),
            _ => assert_eq!(got.as_deref(), expected, "{content}"),
        }
    };
    check("a.conflist", "", Some("is empty"));
    check("a.conflist", " \r\n\t", Some("is empty"));
    check("a.conflist", "\u{feff}{}", Some("is not JSON"));
    check("a.conflist", "[]", Some("is no JSON object"));
    check("a.conflist", r#"{"name":"a"}"#, Some("has no plugins"));
    check("a.conflist", r#"{"name":"a","plugins":[]}"#, Some("has no plugins"));
    check("a.conflist", r#"{"name":"a","plugins":{}}"#, Some("has plugins that are no array"));
    check("a.conflist", r#"{"name":"a","plugins":[1]}"#, Some("plugin 1: is no JSON object"));
    check("a.conflist", r#"{"name":"a","plugins":[{"type":"x"},{}]}"#, Some("plugin 2: has no type"));
    check("a.conflist", r#"{"name":"a","plugins":[{"type":1}]}"#, Some("plugin 1: has a type that is no string"));
    check("a.conflist", r#"{"plugins":[{"type":"x"}]}"#, Some("has no name"));
    check("a.conflist", r#"{"name":1,"plugins":[{"type":"x"}]}"#, Some("has a name that is no string"));
    check("a.conflist", r#"{"name":"a","cniVersion":1,"plugins":[{"type":"x"}]}"#, Some("has a cniVersion"));
    check("a.conflist", r#"{"name":"a","plugins":[{"type":"x"}]} x"#, Some("is not JSON"));
    check("a.conflist", r#"{"name":"a","plugins":[{"type":"x"}]}"#, None);
    check("a.conf", r#"{"name":"a","plugins":[{"type":"x"}]}"#, Some("has no type"));
    check("a.conf", r#"{"type":"x"}"#, None);
    check("a.json", r#"{"type":"x","cniVersion":"0.1.0"}"#, None);
    assert!(Conf::parse("a.conf", b"{\"type\":\"\xff\"}").is_err());
    for name in ["a.yaml", "a", "conf", "a.conflist.bak", "a.conflist.cilium_bak", ".a.conflist.tmp.1.2"] {
        assert!(!conf::is_candidate(name), "{name}");
    }
}

#[test]
fn no_cut_of_a_list_is_taken_for_one() {
    for text in [BRIDGE, SINGLE] {
        for end in 0..text.len() {
            assert!(Conf::parse("a.conflist", &text.as_bytes()[..end]).is_err());
            assert!(Conf::parse("a.conf", &text.as_bytes()[..end]).is_err());
        }
    }
}

/// Our entry in every place and number.
#[test]
fn exactly_one_entry_after_the_first_plugin() {
    let right = serde_json::Value::Object(options().entry.to_json()).to_string();
    let other_order = {
        let mut entry = options().entry.to_json();
        let kind = entry.shift_remove("type").unwrap();
        entry.insert("type".to_owned(), kind);
        serde_json::to_string_pretty(&entry).unwrap()
    };
    let (a, b, ipam) = (r#"{"type":"a"}"#, r#"{"type":"b"}"#, r#"{"type":"c","ipam":{}}"#);
    let list = |plugins: &[&str]| format!(r#"{{"name":"n","plugins":[{}]}}"#, plugins.join(","));
    let check = |before: &[&str], after: &[&str]| {
        let mut listing = listing(&[("10-a.conflist", &list(before))]);
        installed(&settle(&mut listing, &options()), "10-a.conflist");
        assert_eq!(text(&listing, "10-a.conflist"), list(after));
    };
    let r = right.as_str();
    check(&[a, b], &[a, b, r]);
    check(&[a, r, b], &[a, r, b]);
    check(&[a, &other_order, b], &[a, &other_order, b]);
    check(&[r, a, b], &[a, b, r]);
    check(&[r, r, a], &[a, r]);
    check(&[a, r, r], &[a, r]);
    check(&[a, OURS, b, OURS], &[a, b, r]);
    check(&[OURS, a, OURS, OURS, b], &[a, b, r]);
    check(&[a, OURS], &[a, r]);
    check(&[a, r, ipam], &[a, ipam, r]);
    check(&[ipam, r, a], &[ipam, r, a]);
}

#[test]
fn the_primary() {
    let check = |files: &[(&str, &str)], conf_name: Option<&str>, expected: &str| {
        let mut listing = listing(files);
        let options = Options { conf_name: conf_name.map(str::to_owned), ..options() };
        let state = settle(&mut listing, &options);
        match state {
            State::Installed { primary, .. } => {
                assert_eq!(primary, expected);
                assert_eq!(ours(&listing, &primary), 1);
            }
            State::Waiting(reason) => assert!(reason.contains(expected), "{reason}"),
            other => panic!("{other:?}"),
        }
    };
    check(&[("20-b.conflist", FLANNEL), ("10-a.conflist", BRIDGE)], None, "10-a.conflist");
    check(&[("10-a.conflist", "{"), ("20-b.conflist", FLANNEL)], None, "20-b.conflist");
    check(&[("10-c.json", SINGLE), ("20-b.conflist", FLANNEL)], None, "10-c.conflist");
    check(&[("10-c.conf", SINGLE), ("10-a.conflist", BRIDGE)], Some("10-a.conflist"), "10-a.conflist");
    check(&[("10-a.conflist", BRIDGE), ("20-b.conflist", FLANNEL)], Some("20-b.conflist"), "20-b.conflist");
    check(&[("20-b.conflist", FLANNEL)], Some("20-b.conf"), "20-b.conflist");
    check(&[("20-c.conf", SINGLE)], Some("20-c.conflist"), "20-c.conflist");
    check(&[("10-a.conflist", BRIDGE)], Some("20-b.conf"), "waiting for 20-b.conf");
    check(&[("10-a.conflist", "{}")], Some("10-a.conflist"), "waiting for 10-a.conflist: it has no name");
    check(&[], None, "waiting for a CNI configuration");
    check(&[("10-a.conflist", "{}")], None, "waiting for a CNI configuration");
    let only_ours = format!(r#"{{"name":"n","plugins":[{OURS}]}}"#);
    check(&[("10-a.conflist", &only_ours)], None, "waiting for a CNI configuration");
    check(&[("10-a.conflist", &only_ours), ("20-b.conflist", FLANNEL)], None, "20-b.conflist");
}

#[test]
fn broken_files_are_named_and_never_touched() {
    let mut listing = listing(&[("05-x.conflist", "{"), ("06-y.conf", "{}"), ("10-a.conflist", BRIDGE)]);
    let failed = Found { content: Err("Permission denied (os error 13)".to_owned()), ..found("") };
    listing.net.insert("07-z.conf".to_owned(), failed);
    let plan = install(&listing, &options());
    let doubts: Vec<_> = plan.doubts.iter().map(ToString::to_string).collect();
    assert_eq!(doubts.len(), 3);
    for (doubt, name) in doubts.iter().zip(["05-x.conflist", "06-y.conf", "07-z.conf"]) {
        assert!(doubt.starts_with(name), "{doubt}");
    }
    assert!(doubts[2].contains("Permission denied"));
    assert!(plan.steps.iter().all(|step| step.name == "10-a.conflist"));
}

#[track_caller]
fn doubted(plan: &Plan, expected: &str) {
    assert!(matches!(plan.state, State::Installed { .. }), "{plan:?}");
    assert!(plan.doubts.iter().any(|doubt| doubt.to_string().contains(expected)), "{:?}", plan.doubts);
}

#[test]
fn a_file_being_written_decides_nothing() {
    let mut listing = listing(&[("10-a.conflist", "{"), ("20-b.conflist", FLANNEL)]);
    listing.net.get_mut("10-a.conflist").unwrap().age = Duration::from_millis(100);
    assert_eq!(install(&listing, &options()).state, State::Unsettled);
    assert_eq!(install(&listing, &options()).steps, []);
    let named = Options { conf_name: Some("10-a.conf".to_owned()), ..options() };
    assert_eq!(install(&listing, &named).state, State::Unsettled);
    // One that sorts after the primary does not matter.
    let named = Options { conf_name: Some("20-b.conflist".to_owned()), ..options() };
    installed(&install(&listing, &named).state, "20-b.conflist");
}

#[test]
fn an_emptied_file_gets_its_last_good_content() {
    for (name, content, list) in [("10-a.conflist", BRIDGE, "10-a.conflist"), ("10-c.conf", SINGLE, "10-c.conflist")] {
        let mut listing = listing(&[(name, content)]);
        settle(&mut listing, &options());
        let right = text(&listing, list);
        listing.net.insert(list.to_owned(), found(""));
        installed(&settle(&mut listing, &options()), list);
        assert_eq!(text(&listing, list), right);
        // The way back is not lost.
        let steps = remove(&listing, &options());
        apply(&mut listing, &steps);
        assert_eq!(text(&listing, name), content);
        assert_eq!(names(&listing), [name]);
    }
    let mut other = listing(&[("10-a.conflist", "")]);
    assert!(matches!(settle(&mut other, &options()), State::Waiting(_)), "nothing to restore");
}

#[test]
fn conversion_and_what_comes_after() {
    let mut listing = listing(&[("10-c.conf", SINGLE)]);
    // Killed between any two steps: the next run ends in the same place.
    let plan = install(&listing, &options());
    for done in 0..plan.steps.len() {
        let mut interrupted = listing.clone();
        apply(&mut interrupted, &plan.steps[..done]);
        installed(&settle(&mut interrupted, &options()), "10-c.conflist");
        let steps = remove(&interrupted, &options());
        apply(&mut interrupted, &steps);
        assert_eq!((names(&interrupted), text(&interrupted, "10-c.conf")), (vec!["10-c.conf"], SINGLE.to_owned()));
    }
    installed(&settle(&mut listing, &options()), "10-c.conflist");

    // The primary's installer writes its .conf again.
    let newer = SINGLE.replace("ptp", "bridge");
    listing.net.insert("10-c.conf".to_owned(), found(&newer));
    settle(&mut listing, &options());
    assert_eq!(names(&listing), ["10-c.conflist"]);
    assert!(text(&listing, "10-c.conflist").contains("bridge"));
    let mut back = listing.clone();
    let steps = remove(&back, &options());
    apply(&mut back, &steps);
    assert_eq!(text(&back, "10-c.conf"), newer);

    // It moves to a list of its own: the old .conf must not come back.
    listing.net.insert("10-c.conflist".to_owned(), found(FLANNEL));
    settle(&mut listing, &options());
    assert_eq!(listing.saved.keys().collect::<Vec<_>>(), ["10-c.conflist"]);
    let steps = remove(&listing, &options());
    apply(&mut listing, &steps);
    assert_eq!((names(&listing), text(&listing, "10-c.conflist")), (vec!["10-c.conflist"], FLANNEL.to_owned()));
}

#[test]
fn a_conversion_overwrites_nothing_of_others() {
    let mut both = listing(&[("10-c.conf", SINGLE), ("10-c.conflist", BRIDGE)]);
    let before = both.net.len();
    let State::Waiting(reason) = settle(&mut both, &options()) else { panic!() };
    assert!(reason.contains("10-c.conf and 10-c.conflist both exist"), "{reason}");
    assert_eq!((both.net.len(), text(&both, "10-c.conflist").as_str()), (before, BRIDGE));
    let mut broken = listing(&[("10-c.conf", SINGLE), ("10-c.conflist", "{")]);
    assert!(matches!(settle(&mut broken, &options()), State::Waiting(_)));
}

#[test]
fn the_primary_changes_place() {
    let mut listing = listing(&[("10-a.conflist", BRIDGE), ("20-c.conf", SINGLE)]);
    settle(&mut listing, &options());
    // Deleted: the next one, converted.
    let a = listing.net.remove("10-a.conflist").unwrap();
    installed(&settle(&mut listing, &options()), "20-c.conflist");
    // Back, with our entry still in it, and then another one before it: each time only the first has it.
    listing.net.insert("10-a.conflist".to_owned(), a);
    installed(&settle(&mut listing, &options()), "10-a.conflist");
    assert_eq!((names(&listing), text(&listing, "20-c.conf")), (vec!["10-a.conflist", "20-c.conf"], SINGLE.to_owned()));
    listing.net.insert("00-multus.conflist".to_owned(), found(FLANNEL));
    installed(&settle(&mut listing, &options()), "00-multus.conflist");
    assert_eq!(text(&listing, "10-a.conflist"), BRIDGE);
    assert_eq!(ours(&listing, "00-multus.conflist"), 1);
}

#[test]
fn a_copy_of_our_own() {
    let mut listing = listing(&[("10-a.conflist", BRIDGE)]);
    // An earlier run had edited the primary.
    settle(&mut listing, &options());
    let options = owned("02-istio-cni.conflist");
    installed(&settle(&mut listing, &options), "10-a.conflist");
    assert_eq!(text(&listing, "10-a.conflist"), BRIDGE);
    assert_eq!(ours(&listing, "02-istio-cni.conflist"), 1);
    assert_eq!(listing.net["02-istio-cni.conflist"].access, Access { mode: 0o600, owner: None });

    listing.net.insert("10-a.conflist".to_owned(), found(&BRIDGE.replace("portmap", "tuning")));
    settle(&mut listing, &options);
    assert!(text(&listing, "02-istio-cni.conflist").contains("tuning"));
    // The primary is gone for a moment: the copy stays.
    let primary = listing.net.remove("10-a.conflist").unwrap();
    assert!(matches!(settle(&mut listing, &options), State::Waiting(_)));
    assert_eq!(names(&listing), ["02-istio-cni.conflist"]);
    listing.net.insert("10-a.conflist".to_owned(), primary);

    // Another name: Istio's copy is recognised and goes.
    let named = owned("01-mine.conflist");
    installed(&settle(&mut listing, &named), "10-a.conflist");
    assert_eq!(names(&listing), ["01-mine.conflist", "10-a.conflist"]);
    let steps = remove(&listing, &named);
    apply(&mut listing, &steps);
    assert_eq!(names(&listing), ["10-a.conflist"]);

    // Chained again, whatever the copy was called: it goes, the primary has us. Removal knows it without its name, too.
    for before in [options, named] {
        settle(&mut listing, &before);
        let mut removed = listing.clone();
        let steps = remove(&removed, &super::tests::options());
        apply(&mut removed, &steps);
        assert_eq!(names(&removed), ["10-a.conflist"]);
        installed(&settle(&mut listing, &super::tests::options()), "10-a.conflist");
        assert_eq!(names(&listing), ["10-a.conflist"]);
    }
}

#[test]
fn a_copy_of_a_single_configuration() {
    let mut listing = listing(&[("10-c.conf", SINGLE)]);
    let options = owned("02-istio-cni.conflist");
    installed(&settle(&mut listing, &options), "10-c.conf");
    assert_eq!(text(&listing, "10-c.conf"), SINGLE);
    assert_eq!(ours(&listing, "02-istio-cni.conflist"), 1);
}

#[test]
fn a_copy_that_does_not_work() {
    let late = install(&listing(&[("01-a.conflist", BRIDGE)]), &owned("02-istio-cni.conflist"));
    doubted(&late, "01-a.conflist sorts before 02-istio-cni.conflist");
    let refused = |files: &[(&str, &str)], name: &str, reason: &str| {
        let plan = install(&listing(files), &owned(name));
        let State::Waiting(why) = plan.state else { panic!("{plan:?}") };
        assert!(why.contains(reason), "{why}");
        assert_eq!(plan.steps, []);
    };
    refused(&[("10-a.conflist", BRIDGE)], "02-istio-cni.conf", "must end in .conflist");
    refused(&[("10-a.conflist", BRIDGE), ("05-b.conflist", FLANNEL)], "05-b.conflist", "is not our copy");
    refused(&[("10-a.conflist", BRIDGE), ("02-istio-cni.conflist", "{")], "02-istio-cni.conflist", "is not our copy");
}

#[test]
fn a_configuration_of_our_own() {
    let mut listing = listing(&[("10-a.conflist", BRIDGE)]);
    settle(&mut listing, &options());
    let standalone = Options { mode: Mode::Standalone, ..options() };
    installed(&settle(&mut listing, &standalone), "YYY-istio-cni.conf");
    assert_eq!(text(&listing, "10-a.conflist"), BRIDGE, "the entry of an earlier run is taken out");
    let written: serde_json::Value = serde_json::from_str(&text(&listing, "YYY-istio-cni.conf")).unwrap();
    assert_eq!((&written["cniVersion"], &written["type"]), (&"0.3.1".into(), &"istio-cni".into()));
    let named = Options { conf_name: Some("istio-cni.conf".to_owned()), ..standalone.clone() };
    settle(&mut listing, &named);
    assert_eq!(names(&listing), ["10-a.conflist", "istio-cni.conf"]);
    let steps = remove(&listing, &named);
    apply(&mut listing, &steps);
    assert_eq!(names(&listing), ["10-a.conflist"]);
    // It is never taken for a primary.
    settle(&mut listing, &named);
    listing.net.remove("10-a.conflist");
    assert!(matches!(settle(&mut listing, &options()), State::Waiting(_)));

    for (name, content) in [("10-c.conf", SINGLE), ("10-c.conf", "{"), ("10-a.conflist", BRIDGE)] {
        let refused = Options { conf_name: Some(name.to_owned()), ..standalone.clone() };
        let plan = install(&super::tests::listing(&[(name, content)]), &refused);
        assert!(matches!(plan.state, State::Waiting(_)), "{plan:?}");
        assert_eq!(plan.steps, []);
    }
}

#[test]
fn new_files_are_private() {
    let options = Options { conf_group_read: true, ..owned("02-istio-cni.conflist") };
    let plan = install(&listing(&[("10-a.conflist", BRIDGE)]), &options);
    let Change::Write(_, access) = &plan.steps[0].change else { panic!() };
    assert_eq!(*access, Access { mode: 0o640, owner: None });
}
