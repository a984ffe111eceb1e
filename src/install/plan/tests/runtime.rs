//! What a runtime makes of the configuration, and the name that a network keeps.

use super::*;

#[test]
fn what_a_runtime_may_use_instead() {
    let check = |earlier: Found, options: &Options, expected: Option<&str>| {
        let mut listing = listing(&[("10-a.conflist", BRIDGE)]);
        listing.net.insert("05-x.conflist".to_owned(), earlier);
        settle(&mut listing, options);
        let plan = install(&listing, options);
        match expected {
            Some(expected) => doubted(&plan, expected),
            None => assert_eq!(plan.doubts, []),
        }
    };
    let unread = |why: &str| Found { content: Err(why.to_owned()), ..found("") };
    check(unread("Permission denied (os error 13)"), &options(), Some("05-x.conflist sorts before 10-a.conflist"));
    check(unread("larger than 1048576 bytes"), &options(), Some("cannot be read"));
    check(found("{\"name\":"), &options(), Some("is not JSON"));
    check(found(r#"{"name":"x","plugins":[{"type":"a","capabilities":{"b":2}}]}"#), &options(), Some("capabilities"));
    // The primary is named, and another comes first: only one that calls others may.
    let named = Options { conf_name: Some("10-a.conflist".to_owned()), ..options() };
    check(found(FLANNEL), &named, Some("05-x.conflist sorts before 10-a.conflist: the runtime uses it"));
    check(found(&FLANNEL.replace("flannel", "multus")), &named, None);
    let owned = owned("07-mine.conflist");
    check(
        unread("No such file or directory (os error 2)"),
        &owned,
        Some("05-x.conflist sorts before 07-mine.conflist"),
    );
    // One that sorts after ours does not matter, and with a configuration of our own none does.
    let standalone = Options { mode: Mode::Standalone, ..options() };
    check(unread("Permission denied (os error 13)"), &standalone, None);
    let mut late = listing(&[("10-a.conflist", BRIDGE), ("20-b.conflist", "{")]);
    settle(&mut late, &options());
    assert_eq!(install(&late, &options()).doubts, []);
}

#[test]
fn the_primary_is_the_file_that_go_would_load() {
    for first in [
        r#"{"name":"x","plugins":[{"Type":"bridge"}]}"#,
        r#"{"name":"x\ud800","plugins":[{"type":"bridge","a":"\udfff"}]}"#,
        r#"{"name":"x","disableCheck":"TRUE","plugins":[{"TYPE":"bridge","ipam":null}]}"#,
    ] {
        let mut listing = listing(&[("05-x.conflist", first), ("10-a.conflist", BRIDGE)]);
        installed(&settle(&mut listing, &options()), "05-x.conflist");
        let steps = remove(&listing, &options());
        apply(&mut listing, &steps);
        assert_eq!(text(&listing, "05-x.conflist"), first);
    }
    let single = r#"{"Name":"x","CNIVersion":"0.4.0","Type":"bridge"}"#;
    let mut listing = listing(&[("05-x.conf", single)]);
    installed(&settle(&mut listing, &options()), "05-x.conflist");
    assert!(
        text(&listing, "05-x.conflist").starts_with(r#"{"name":"x","cniVersion":"0.4.0","plugins":[{"Type":"bridge"}"#)
    );
}

#[test]
fn no_entry_where_the_runtime_would_not_find_the_plugin() {
    let with = |plugins: &[&str]| Some(plugins.iter().map(|name| (*name).to_owned()).collect());
    for options in [options(), owned("02-istio-cni.conflist")] {
        let mut listing =
            Listing { plugins: with(&["istio-cni", "loopback"]), ..listing(&[("10-a.conflist", BRIDGE)]) };
        let plan = install(&listing, &options);
        let State::OtherBinDir(doubt) = &plan.state else { panic!("{plan:?}") };
        assert!(doubt.finding.contains("none of the chain's other plugins (bridge, portmap)"), "{doubt}");
        assert_eq!(plan.steps, []);
        // One of them is enough, and a directory that cannot be listed proves nothing.
        for plugins in [with(&["portmap"]), None] {
            let mut listing = Listing { plugins, ..listing.clone() };
            installed(&settle(&mut listing, &options), "10-a.conflist");
            assert_eq!(install(&listing, &options).doubts, []);
        }
        // An entry that is there already stays as it should be.
        listing.plugins = None;
        settle(&mut listing, &options);
        listing.plugins = with(&[]);
        doubted(&install(&listing, &options), "none of the chain's other plugins");
        assert_eq!(install(&listing, &options).steps, []);
    }
}

/// Istio's agent makes this of [`SINGLE`], in a file of its own or in place of it.
const ISTIOS: &str = r#"{"cniVersion":"0.3.1","name":"k8s-pod-network","plugins":[{"ipam":{},"name":"c","type":"ptp"},{"type":"istio-cni"}]}"#;

#[test]
fn a_network_keeps_the_name_that_pods_were_added_under() {
    let head = |listing: &Listing, name: &str| {
        let text = text(listing, name);
        let list = serde_json::from_str::<serde_json::Value>(&text).unwrap();
        (list["name"].as_str().unwrap().to_owned(), list["cniVersion"].as_str().unwrap().to_owned())
    };
    let (own, istios) = (("c".to_owned(), "0.4.0".to_owned()), ("k8s-pod-network".to_owned(), "0.3.1".to_owned()));
    // Fresh: its own, in every mode.
    for (options, file) in [(options(), "10-c.conflist"), (owned("02-istio-cni.conflist"), "02-istio-cni.conflist")] {
        let mut listing = listing(&[("10-c.conf", SINGLE)]);
        settle(&mut listing, &options);
        assert_eq!(head(&listing, file), own);
    }
    // Taken over from Istio: the one of its copy, also when the copy goes.
    for (options, file) in [(options(), "10-c.conflist"), (owned("02-istio-cni.conflist"), "02-istio-cni.conflist")] {
        let mut listing = listing(&[("02-istio-cni.conflist", ISTIOS), ("10-c.conf", SINGLE)]);
        installed(&settle(&mut listing, &options), if file == "10-c.conflist" { file } else { "10-c.conf" });
        assert_eq!(head(&listing, file), istios);
        let steps = remove(&listing, &options);
        apply(&mut listing, &steps);
        assert_eq!(names(&listing), ["10-c.conf"], "the original comes back");
        assert_eq!(text(&listing, "10-c.conf"), SINGLE);
    }
    // In place: Istio's list is edited, and the single configuration is gone.
    let mut listing = listing(&[("10-c.conflist", ISTIOS)]);
    settle(&mut listing, &options());
    assert_eq!(head(&listing, "10-c.conflist"), istios);
    // Istio's copy is of another chain: nothing to keep.
    let mut other =
        super::tests::listing(&[("02-istio-cni.conflist", &ISTIOS.replace("ptp", "macvlan")), ("10-c.conf", SINGLE)]);
    settle(&mut other, &owned("02-istio-cni.conflist"));
    assert_eq!(head(&other, "02-istio-cni.conflist"), own);
}

#[test]
fn what_may_still_name_us() {
    let mut listing = listing(&[
        ("05-a.conflist", r#"{"plugins": [{"type": "istio-cni"},"#),
        ("06-b.conflist", "{"),
        ("10-a.conflist", BRIDGE),
    ]);
    listing.net.insert("07-z.conf".to_owned(), Found { content: Err("EIO".to_owned()), ..found("") });
    settle(&mut listing, &options());
    let steps = remove(&listing, &options());
    apply(&mut listing, &steps);
    let unclear = unclear(&listing);
    assert_eq!(unclear.len(), 2, "{unclear:?}");
    assert!(unclear[0].starts_with("05-a.conflist names istio-cni"), "{}", unclear[0]);
    assert!(unclear[1].starts_with("07-z.conf cannot be read (EIO)"), "{}", unclear[1]);
}
