//! What holds for every input of a parser, one property a parser: for the fuzzer, and for the tests, which replay the
//! inputs kept in `test-fixtures/fuzz`.
//!
//! A property panics when it does not hold. None only asks that nothing crashes: what is read twice, in pieces, or
//! after being written again says the same; sizes stay within their bounds; what others wrote survives.

mod agent;
mod certificate;
mod cni;
mod h2;
mod http;
mod install;
mod kernel;
mod kube;
mod options;
mod pod;
mod sds;
mod zds;

/// A property of any bytes.
pub type Property = fn(&[u8]);

/// Every property, by the name of its fuzz target.
pub const ALL: &[(&str, Property)] = &[
    ("agent", agent::agent),
    ("certificate", certificate::certificate),
    ("cni", cni::cni),
    ("conflist", install::conflist),
    ("grpc", h2::messages),
    ("h2", h2::connection),
    ("hpack", h2::header_blocks),
    ("http_request", http::request),
    ("http_response", http::response),
    ("key_pair", certificate::key_pair),
    ("kube", kube::kube),
    ("kubeconfig", kube::kubeconfig),
    ("legacy_table", kernel::legacy_table),
    ("netlink", kernel::netlink),
    ("objects", pod::objects),
    ("options", options::options),
    ("pod_rules", pod::rules),
    ("proc", kernel::proc),
    ("sds", sds::stream),
    ("selectors", pod::selectors),
    ("zds", zds::packets),
];

/// Checks one property, by the name of its fuzz target.
pub fn check(name: &str, input: &[u8]) {
    let found = ALL.iter().find(|(known, _)| *known == name);
    let (_, property) = found.unwrap_or_else(|| panic!("no property {name:?}"));
    property(input);
}

/// The input as text; nothing when it is none.
fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

/// What `iptables-restore` is given: tables from `*name` to `COMMIT`, nothing else, whatever the texts in it.
fn assert_restore(input: &str) {
    let mut inside = false;
    for line in input.lines() {
        assert!(line.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{line:?}");
        let (command, rest) = line.split_at(1);
        match command {
            "*" => {
                assert!(!inside && matches!(rest, "filter" | "mangle" | "nat" | "raw"), "{line:?} in {input}");
                inside = true;
            }
            ":" => assert!(inside && rest.ends_with(" - [0:0]"), "{line:?} in {input}"),
            "-" => assert!(inside && rest.starts_with(['A', 'I', 'D', 'F', 'X']), "{line:?} in {input}"),
            _ => {
                assert!(inside && line == "COMMIT", "{line:?} in {input}");
                inside = false;
            }
        }
    }
    assert!(!inside, "{input}");
}
