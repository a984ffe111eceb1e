//! The host's probe sets, against the kernel and as `ipset` shows them.

use ferrule::dataplane::xtables::ipset as probe_set;
use ferrule::rules::family::Family;
use ferrule::sys::netns::Netns;
use std::net::IpAddr;
use std::process::Command;

/// Runs in a namespace of its own, which plays the host.
fn on_a_host(test: impl FnOnce() + Send) {
    Netns::scratch().unwrap().enter(test).unwrap();
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Members as `ipset` prints them, sorted.
fn members(set: &str) -> Vec<String> {
    let out = Command::new("ipset").args(["list", set]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("Type: hash:ip") && text.contains("comment"), "{text}");
    let mut members: Vec<_> = text.lines().skip_while(|l| *l != "Members:").skip(1).map(str::to_owned).collect();
    members.sort();
    members
}

#[test]
fn entries_are_replaced_and_only_removed_for_their_pod() {
    on_a_host(|| {
        for family in [Family::V4, Family::V6] {
            assert!(probe_set::entries(family).unwrap().is_empty(), "no set is no entries");
            probe_set::create(family).unwrap();
            probe_set::create(family).unwrap();
        }
        probe_set::add(ip("10.0.0.7"), "uid-1").unwrap();
        probe_set::add(ip("10.0.0.8"), "uid-2").unwrap();
        probe_set::add(ip("10.0.0.7"), "uid-3").unwrap();
        probe_set::add(ip("::ffff:10.0.0.9"), "uid-4").unwrap();
        probe_set::add(ip("fd00::7"), "uid-1").unwrap();
        let v4 = ["10.0.0.7 comment \"uid-3\"", "10.0.0.8 comment \"uid-2\"", "10.0.0.9 comment \"uid-4\""];
        assert_eq!(members("istio-inpod-probes-v4"), v4);
        assert_eq!(members("istio-inpod-probes-v6"), ["fd00::7 comment \"uid-1\""]);
        assert_eq!(probe_set::entries(Family::V4).unwrap()[&ip("10.0.0.7")], "uid-3");

        assert!(!probe_set::remove(ip("10.0.0.7"), "uid-1").unwrap(), "the address has passed on");
        assert!(!probe_set::remove(ip("10.0.0.99"), "uid-1").unwrap());
        assert!(probe_set::remove(ip("10.0.0.7"), "uid-3").unwrap());
        assert!(probe_set::remove(ip("::ffff:10.0.0.9"), "uid-4").unwrap());
        assert_eq!(members("istio-inpod-probes-v4"), v4[1..2]);

        assert!(probe_set::destroy(Family::V4).unwrap());
        assert!(!probe_set::destroy(Family::V4).unwrap());
        assert!(probe_set::add(ip("10.0.0.7"), "uid-1").is_err(), "the set is gone");
    });
}

#[test]
fn a_large_set_is_read_whole() {
    on_a_host(|| {
        probe_set::create(Family::V4).unwrap();
        for n in 0..2000_u32 {
            probe_set::add(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), &format!("uid-{n}")).unwrap();
        }
        let entries = probe_set::entries(Family::V4).unwrap();
        assert_eq!(entries.len(), 2000);
        assert_eq!(entries[&ip("10.0.7.207")], "uid-1999");
    });
}

#[test]
fn a_set_of_another_kind_is_refused_with_the_remedy() {
    on_a_host(|| {
        let made = Command::new("ipset").args(["create", "istio-inpod-probes-v4", "hash:net"]).status().unwrap();
        assert!(made.success());
        let text = probe_set::create(Family::V4).unwrap_err().to_string();
        assert!(text.contains("ipset destroy istio-inpod-probes-v4"), "{text}");
    });
}
