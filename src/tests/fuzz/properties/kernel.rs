//! What the kernel answers: netlink, socket options, `/proc`.

use super::{assert_restore, text};
use ferrule::dataplane::nftables::tables::Own;
use ferrule::dataplane::nftables::{decode as nft, dump::Dump, set as own_set};
use ferrule::dataplane::policy::PolicyRule;
use ferrule::dataplane::procfs::cgroup::{Judgement, Layout};
use ferrule::dataplane::procfs::root::CgroupRoots;
use ferrule::dataplane::procfs::start_time;
use ferrule::dataplane::procfs::uid::PodUid;
use ferrule::dataplane::routing::{is_route, parse_rule};
use ferrule::dataplane::xtables::{entries as legacy, ipset as probe_set};
use ferrule::rules::diff::{Expected, Leftovers, plain_jumps};
use ferrule::rules::family::Family;
use ferrule::rules::inpod::{OWNED, Settings, rules};
use ferrule::rules::nftables::{owned, tables};
use ferrule::rules::program::Purpose;
use ferrule::rules::routing::LocalRoute;
use ferrule::rules::view::View;
use ferrule::sys::netlink::socket::Answers;
use ferrule::sys::netlink::{RawMessage, address};
use std::net::{Ipv4Addr, Ipv6Addr};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The messages of one packet as the kernel sends it.
fn messages(packet: &[u8]) -> Vec<RawMessage> {
    let mut answers = Answers::new(1);
    let _ = answers.take(packet);
    assert!(answers.messages().iter().map(|message| message.payload.len() + 16).sum::<usize>() <= packet.len());
    answers.messages().to_vec()
}

/// A packet of netlink, whatever is taken to be in it.
pub fn netlink(input: &[u8]) {
    nft_dump(input);
    ipset_dump(input);
    own_set_dump(input);
    route_dump(input);
}

/// A dump of nf_tables: one rule for each message at most, and what follows from it is input for iptables-restore.
fn nft_dump(input: &[u8]) {
    let mut dump = Dump::default();
    let all = messages(input);
    let count = all.len();
    for message in all {
        match message.kind & 0xff {
            0 => dump.tables.push(message),
            3 => dump.chains.push(message),
            _ => dump.rules.push(message),
        }
    }
    let Ok(views) = nft::decode(&dump, &|_| None) else { return };
    let rules = |view: &View| -> usize {
        view.tables.values().flat_map(|table| table.chains.values()).map(|chain| chain.rules.len()).sum()
    };
    assert!(views.values().map(rules).sum::<usize>() <= count);
    assert_eq!(nft::decode(&dump, &|_| None).unwrap(), views);
    for (family, view) in views {
        compared(family, view);
    }
    if let Ok((view, _)) = nft::decode_shared(&dump, &owned(Purpose::Ambient)) {
        assert!(rules(&view) <= count);
        own_compared(view);
    }
}

/// What is done about tables of our own: what is there is right only if it is what was written.
fn own_compared(view: View) {
    let settings = settings(true);
    let tables = tables(Purpose::Ambient, &FAMILIES.map(|family| rules(&settings, family)));
    let gone = Own::default();
    assert_eq!(gone.plan(Purpose::Ambient, &view, Leftovers::Remove).is_empty(), view.tables.is_empty());
    assert!(gone.plan(Purpose::Ambient, &view, Leftovers::Keep).is_empty());
    if let Ok(own) = Own::new(tables, view.clone()) {
        assert!(own.plan(Purpose::Ambient, &view, Leftovers::Remove).is_empty());
        assert!(!own.plan(Purpose::Ambient, &View::default(), Leftovers::Remove).is_empty());
    }
}

/// A legacy table: family, `struct ipt_getinfo`, entries.
pub fn legacy_table(input: &[u8]) {
    /// Size of the smallest entry: an address part and a target.
    const SMALLEST: usize = 112 + 32;
    let Some((family, rest)) = input.split_first() else { return };
    let Some((info, entries)) = rest.split_at_checked(legacy::INFO_SIZE) else { return };
    let family = FAMILIES[usize::from(family & 1)];
    let mut info = info.to_vec();
    // Mostly wrong otherwise, and then nothing else is seen.
    info[legacy::INFO_SIZE - 4..].copy_from_slice(&(entries.len() as u32).to_ne_bytes());
    let Ok(table) = legacy::decode(family, &info, entries, &|_| None) else { return };
    let count: usize = table.chains.values().map(|chain| chain.rules.len()).sum();
    assert!(count * SMALLEST <= entries.len(), "{count} rules in {} bytes", entries.len());
    for name in ["mangle", "nat"] {
        compared(family, View { tables: [(name.to_owned(), table.clone())].into() });
    }
}

/// What is done about a view.
fn compared(family: Family, view: View) {
    let plan =
        |expected: &Expected, view: &View| expected.plan(OWNED, &plain_jumps(OWNED, view), view, Leftovers::Remove);
    let gone = plan(&Expected::nothing(family), &view);
    assert_restore(&gone.restore);
    assert_eq!(gone.is_empty(), gone.restore.is_empty());
    for dns_capture in [false, true] {
        let rules = rules(&settings(dns_capture), family);
        if let Ok(expected) = Expected::new(rules, view.clone()) {
            let whole = plan(&expected, &View::default());
            assert!(!whole.is_empty());
            assert_restore(&whole.restore);
            let own = plan(&expected, &view);
            assert_restore(&own.restore);
        }
    }
}

fn settings(dns_capture: bool) -> Settings {
    Settings {
        dns_capture,
        ingress_mode: false,
        reroute_interfaces: vec![],
        ipv6: true,
        probe_v4: Ipv4Addr::new(169, 254, 7, 127),
        probe_v6: Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff),
    }
}

/// A listing of an ipset: one address for each entry at most.
fn ipset_dump(input: &[u8]) {
    /// Size of the smallest entry: three levels of attributes around an IPv4 address.
    const SMALLEST: usize = 16;
    let Ok(entries) = probe_set::decode(&messages(input)) else { return };
    assert!(entries.len() * SMALLEST <= input.len());
}

/// A listing of a set of nf_tables: one address for each entry at most.
fn own_set_dump(input: &[u8]) {
    /// Size of the smallest entry: three levels of attributes around an IPv4 address.
    const SMALLEST: usize = 16;
    let Ok(entries) = own_set::decode(&messages(input)) else { return };
    assert!(entries.len() * SMALLEST <= input.len());
}

/// Rules, routes and addresses: decoded or left out.
fn route_dump(input: &[u8]) {
    for message in messages(input) {
        if let Some(rule) = PolicyRule::parse(&message) {
            assert!(parse_rule(&message).is_none(), "{rule:?}");
        }
        if let Some(rule) = parse_rule(&message) {
            assert!(rule.priority.is_some());
        }
        for family in FAMILIES {
            let route = LocalRoute { family, table: 100 };
            // One of another table is another route.
            assert!(!is_route(&route, &message) || !is_route(&LocalRoute { table: 101, ..route }, &message));
        }
        let _ = address(&message);
    }
}

/// Files of a process.
pub fn proc(input: &[u8]) {
    stat(input);
    cgroup(input);
}

/// `/proc/PID/stat`: the program's name, which anybody chooses, never matters.
fn stat(input: &[u8]) {
    let stat = String::from_utf8_lossy(input);
    let _ = start_time(&stat);
    let rest = "S 1 42 42 0 -1 4194560 2189 0 11 0 3 5 0 0 20 0 1 0 8271 3444736 512 18446744073709551615 1 1";
    assert_eq!(start_time(&format!("42 ({stat}) {rest}\n")), Some(8271));
}

/// `/proc/PID/cgroup`: lines that name no pod change nothing, and neither does saying it twice; what is below a part of
/// the hierarchy that others have never makes a process a pod's, and what is below a pod's is that pod's.
fn cgroup(input: &[u8]) {
    let Some(lines) = text(input) else { return };
    let roots = CgroupRoots::default();
    let judge = |text: &str| Layout::new(&roots, "").judge(text);
    let judgement = judge(lines);
    assert_judgement(&judgement, lines);
    let twice = judge(&format!("1:name=systemd:/init.scope\n{lines}\n{lines}\n0::/\n"));
    assert_eq!(twice.member.as_ref().map(|member| &member.uid), judgement.member.as_ref().map(|member| &member.uid));
    // As process 1's own.
    assert_judgement(&Layout::new(&roots, lines).judge(lines), lines);
    let below = |dir: &str| -> String {
        let moved =
            lines.split('\n').filter_map(|line| line.rsplit_once(":/").map(|(_, path)| format!("0::{dir}/{path}\n")));
        moved.collect()
    };
    assert_eq!(judge(&below("/user.slice/user-1000.slice/user@1000.service")).member, None);
    assert_eq!(judge(&below("/../..")).member, None);
    let victim = PodUid::parse("00000000-0000-0000-0000-00000000000f");
    let inside = below("/kubepods/burstable/pod00000000-0000-0000-0000-00000000000f");
    let member = judge(&inside).member.map(|member| member.uid);
    assert!(member.is_none() || member == victim, "{member:?}");
    let Some(member) = judgement.member else { return };
    let other = judge(&format!("0::/kubepods/pod00000000-0000-0000-0000-00000000000f\n{lines}")).member;
    assert!(other.is_none() || Some(member.uid) == victim, "{other:?}");
}

/// Whatever is said is said of a pod that is named, and shown in a bounded text.
fn assert_judgement(judgement: &Judgement, lines: &str) {
    let digits: String = lines.to_ascii_lowercase().chars().filter(|c| !matches!(c, '-' | '_')).collect();
    let member = judgement.member.iter().map(|member| &member.uid);
    for uid in member.chain(judgement.refused.iter().map(|(uid, _)| uid)) {
        let text = format!("{uid:?}");
        assert_eq!(PodUid::parse(&text).as_ref(), Some(uid));
        assert!(digits.contains(&text), "{text}");
    }
    for proof in judgement.member.iter().flat_map(|member| &member.proofs) {
        assert!(proof.path.starts_with('/') && !proof.path.contains("/../"), "{proof:?}");
    }
    for (_, why) in &judgement.refused {
        let why = why.to_string();
        assert!(why.len() < 4096 && !why.contains('\n'), "{why}");
    }
}
