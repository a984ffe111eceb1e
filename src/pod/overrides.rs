//! Per-pod settings by annotation, and the two value syntaxes they share with the rest: booleans and interface names.

use super::strings::Quoted;
use super::types::StringMap;
use crate::rules::inpod::Settings;

/// Makes the pod an ingress: its inbound plaintext is not captured.
pub const BYPASS_INBOUND_CAPTURE: &str = "ambient.istio.io/bypass-inbound-capture";
/// Redirects the pod's DNS, or not, whatever the global setting says.
pub const DNS_CAPTURE: &str = "ambient.istio.io/dns-capture";
/// Comma list of virtual interfaces whose traffic counts as outbound.
pub const REROUTE_VIRTUAL_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";

/// The most interfaces that an annotation may name: each costs rules, and a pod has a few.
pub const MOST_INTERFACES: usize = 64;

/// What a pod's annotations ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// [`BYPASS_INBOUND_CAPTURE`]: ingress mode.
    pub ingress_mode: bool,
    /// [`DNS_CAPTURE`]; overrides the global setting both ways.
    pub dns_capture: Option<bool>,
    /// [`REROUTE_VIRTUAL_INTERFACES`]; only valid interface names, each once.
    pub reroute_interfaces: Vec<String>,
    /// What was wrong with the rest, one sentence each, naming annotation and value.
    pub warnings: Vec<String>,
}

impl Overrides {
    /// The settings of this pod, where `usual` are those of one that asks for nothing.
    pub fn over(&self, usual: Settings) -> Settings {
        Settings {
            dns_capture: self.dns_capture.unwrap_or(usual.dns_capture),
            ingress_mode: self.ingress_mode,
            reroute_interfaces: self.reroute_interfaces.clone(),
            ..usual
        }
    }
}

/// Reads the annotations. A bad value is a warning and counts as absent.
pub fn parse(annotations: &StringMap) -> Overrides {
    let mut warnings = Vec::new();
    let mut boolean = |key: &str| {
        let value = annotations.get(key)?;
        let parsed = parse_bool(value);
        if parsed.is_none() {
            warnings.push(format!("annotation {key}: {} is not true or false; ignored", Quoted(value)));
        }
        parsed
    };
    let ingress_mode = boolean(BYPASS_INBOUND_CAPTURE).unwrap_or(false);
    let dns_capture = boolean(DNS_CAPTURE);

    let list = annotations.get(REROUTE_VIRTUAL_INTERFACES).map_or("", String::as_str);
    let reroute_interfaces = interfaces(list, &mut warnings);
    Overrides { ingress_mode, dns_capture, reroute_interfaces, warnings }
}

/// The first [`MOST_INTERFACES`] valid names, each once.
fn interfaces(list: &str, warnings: &mut Vec<String>) -> Vec<String> {
    let (mut names, mut wrong, mut too_many) = (Vec::<String>::new(), 0, false);
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if !is_interface_name(name) {
            wrong += 1;
            if wrong == 1 {
                warnings.push(format!(
                    "annotation {REROUTE_VIRTUAL_INTERFACES}: {} is not the name of a network interface; ignored",
                    Quoted(name)
                ));
            }
        } else if names.iter().any(|known| known == name) {
        } else if names.len() < MOST_INTERFACES {
            names.push(name.to_owned());
        } else {
            too_many = true;
        }
    }
    if wrong > 1 {
        warnings.push(format!("annotation {REROUTE_VIRTUAL_INTERFACES}: {} more names are ignored", wrong - 1));
    }
    if too_many {
        warnings.push(format!(
            "annotation {REROUTE_VIRTUAL_INTERFACES} has more than {MOST_INTERFACES} names; the rest is ignored"
        ));
    }
    names
}

/// A boolean as Go's `strconv.ParseBool` takes it; `None` for anything else.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Whether a text may name a network interface in a rule: at most 15 bytes (IFNAMSIZ), and only letters, digits, `.`,
/// `_` and `-`, not in front. The kernel allows more, but `+`, `*`, `!` and quotes mean something to packet filters.
pub fn is_interface_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=15).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('-') && text != "." && text != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> StringMap {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn annotations_to_overrides() {
        let check = |pairs: &[(&str, &str)], ingress, dns, interfaces: &[&str], warnings: &[&str]| {
            let got = parse(&annotations(pairs));
            assert_eq!((got.ingress_mode, got.dns_capture), (ingress, dns), "{pairs:?}");
            assert_eq!(got.reroute_interfaces, interfaces, "{pairs:?}");
            assert_eq!(got.warnings, warnings, "{pairs:?}");
        };
        check(&[], false, None, &[], &[]);
        check(&[("ambient.istio.io/bypass-inbound-capture", "true")], true, None, &[], &[]);
        check(&[("ambient.istio.io/bypass-inbound-capture", "F")], false, None, &[], &[]);
        check(&[("ambient.istio.io/dns-capture", "0")], false, Some(false), &[], &[]);
        check(&[("ambient.istio.io/dns-capture", "T")], false, Some(true), &[], &[]);
        check(
            &[("ambient.istio.io/dns-capture", "yes"), ("ambient.istio.io/bypass-inbound-capture", "")],
            false,
            None,
            &[],
            &[
                "annotation ambient.istio.io/bypass-inbound-capture: \"\" is not true or false; ignored",
                "annotation ambient.istio.io/dns-capture: \"yes\" is not true or false; ignored",
            ],
        );
        check(
            &[("istio.io/reroute-virtual-interfaces", " net1, k6t-eth0,,net1,")],
            false,
            None,
            &["net1", "k6t-eth0"],
            &[],
        );
        check(
            &[("istio.io/reroute-virtual-interfaces", "net1,sixteen-bytes-xx")],
            false,
            None,
            &["net1"],
            &["annotation istio.io/reroute-virtual-interfaces: \"sixteen-bytes-xx\" is not the name of a network \
               interface; ignored"],
        );
    }

    #[test]
    fn a_pod_s_own_settings_win_both_ways() {
        let usual = |dns_capture| Settings {
            dns_capture,
            ingress_mode: false,
            reroute_interfaces: vec![],
            ipv6: true,
            probe_v4: std::net::Ipv4Addr::LOCALHOST,
            probe_v6: std::net::Ipv6Addr::LOCALHOST,
        };
        for (asked, node, want) in [(None, true, true), (Some(false), true, false), (Some(true), false, true)] {
            let asked = Overrides { dns_capture: asked, ingress_mode: true, ..Overrides::default() };
            let rules = asked.over(usual(node));
            assert!(rules.dns_capture == want && rules.ingress_mode && rules.ipv6, "{asked:?}");
        }
    }

    #[test]
    fn interface_names() {
        for good in ["a", "eth0", "fifteen-bytes-x", "net1.100", "br_0", "..."] {
            assert!(is_interface_name(good), "{good:?}");
        }
        for bad in
            ["", ".", "..", "a/b", "a b", "a:b", "eth+", "*", "!eth0", "-j", "a\"b", "a\nb", "sixteen-bytes-xx", "é"]
        {
            assert!(!is_interface_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_list_of_any_length_costs_little() {
        let many: String = (0..60_000).map(|n| format!("v{n},")).collect();
        let got = parse(&annotations(&[("istio.io/reroute-virtual-interfaces", &many)]));
        assert_eq!(got.reroute_interfaces.len(), MOST_INTERFACES);
        assert_eq!(
            got.warnings,
            ["annotation istio.io/reroute-virtual-interfaces has more than 64 names; the rest is ignored"]
        );
        let wrong = format!("a,{},b b,c/d,e", "x".repeat(70_000));
        let got = parse(&annotations(&[("istio.io/reroute-virtual-interfaces", &wrong)]));
        assert_eq!(got.reroute_interfaces, ["a", "e"]);
        let [first, more] = &got.warnings[..] else { panic!("{:?}", got.warnings) };
        assert!(first.len() < 300 && first.contains("xxx\"… (70000 bytes) is not the name"), "{first}");
        assert_eq!(more, "annotation istio.io/reroute-virtual-interfaces: 2 more names are ignored");
        let got = parse(&annotations(&[("ambient.istio.io/dns-capture", &"y".repeat(1000))]));
        assert!(got.warnings[0].len() < 250, "{:?}", got.warnings);
    }
}
