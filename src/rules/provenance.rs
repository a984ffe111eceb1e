//! Whether what stands in a pod's packet filter is ambient's own: told by what the rules say. Names prove nothing, for
//! the rules of a sidecar have chains of the same names.

use super::inpod::{OWNED, PROXY_MARK, TPROXY_MARK};
use super::nftables::owned as tables_of;
use super::program::Purpose;
use super::ruleset::{Mark, TableName};
use super::sidecar::leads_to_sidecar;
use super::view::{RuleView, View};

/// Why the rules of ambient must not be taken out of a namespace; `None` where they may, or where none are. `filters`
/// are the tables of iptables, one for each variant and family; `native` those tables of nf_tables that may be ours.
pub fn objection<'a>(filters: impl IntoIterator<Item = &'a View>, native: &View) -> Option<String> {
    let filters: Vec<&View> = filters.into_iter().collect();
    if let Some(why) = sidecar(filters.iter().copied(), native) {
        return Some(why);
    }
    let strange =
        |name: &&str| native.table(name).is_some_and(|table| !is_ambient(table.chains.values().flat_map(|c| &c.rules)));
    if let Some(name) = tables_of(Purpose::Ambient).into_iter().find(strange) {
        return Some(format!("table inet {name} holds no rule of the ambient mesh"));
    }
    let rules = |view: &'a View| {
        let table = |name: TableName| view.table(name.as_str());
        OWNED.iter().filter_map(move |one| Some(table(one.table)?.rules(one.chain))).flatten()
    };
    let is_strange = |view: &&'a View| !is_ambient(rules(view));
    filters.into_iter().any(|view| is_strange(&view)).then(|| {
        "its chains ISTIO_PRERT and ISTIO_OUTPUT hold no rule of the ambient mesh: they are somebody else's".to_owned()
    })
}

/// Why the rules of ambient must not be put into a namespace: they would take a sidecar's redirection away.
pub fn sidecar<'a>(filters: impl IntoIterator<Item = &'a View>, native: &View) -> Option<String> {
    if let Some(name) = tables_of(Purpose::Sidecar).into_iter().find(|name| native.table(name).is_some()) {
        return Some(format!("the network namespace is a sidecar's: there is the table inet {name}"));
    }
    let leads = filters.into_iter().filter_map(|view| view.table(TableName::Nat.as_str())).any(leads_to_sidecar);
    leads.then(|| "the network namespace is a sidecar's: chain ISTIO_OUTPUT of table nat leads to it".to_owned())
}

/// Whether one of the rules asks for, or sets, a mark of ambient; nothing at all is ambient's too.
fn is_ambient<'a>(rules: impl Iterator<Item = &'a RuleView>) -> bool {
    let mut rules = rules.peekable();
    rules.peek().is_none() || rules.any(|rule| [PROXY_MARK, TPROXY_MARK].iter().any(|mark| carries(rule, *mark)))
}

/// Marks stand in matches and targets of x_tables and in expressions of nf_tables in the order of this machine.
fn carries(rule: &RuleView, Mark { value, mask }: Mark) -> bool {
    let holds = |number: u32| rule.body.windows(4).any(|bytes| bytes == number.to_ne_bytes());
    holds(value) && holds(mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::view::{ChainView, TableView};

    fn rule(jump: Option<&str>, numbers: &[u32]) -> RuleView {
        let body = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        RuleView { jump: jump.map(str::to_owned), plain: false, body }
    }

    fn view(table: &str, chain: &str, rules: Vec<RuleView>) -> View {
        let chains = [(chain.to_owned(), ChainView { attached: None, rules })].into();
        View { tables: [(table.to_owned(), TableView { dormant: false, chains })].into() }
    }

    #[test]
    fn rules_are_known_by_what_they_say() {
        let nothing = View::default();
        let check = |filter: View, native: View, expected: Option<&str>| {
            let found = objection([&nothing, &filter], &native);
            match expected {
                None => assert_eq!(found, None, "{filter:?} {native:?}"),
                Some(word) => assert!(found.as_ref().is_some_and(|text| text.contains(word)), "{found:?}"),
            }
        };
        let none = View::default;
        check(none(), none(), None);
        for mark in [0x539, 0x111] {
            check(view("nat", "ISTIO_OUTPUT", vec![rule(None, &[]), rule(None, &[7, mark, 0xfff])]), none(), None);
            check(view("mangle", "ISTIO_PRERT", vec![rule(None, &[mark, u32::MAX])]), none(), Some("somebody"));
            check(none(), view("istio-ambient-nat", "output", vec![rule(None, &[mark, 0xfff])]), None);
        }
        check(view("nat", "ISTIO_OUTPUT", vec![]), none(), None);
        check(view("nat", "ISTIO_OUTPUT", vec![rule(None, &[1, 0xfff])]), none(), Some("somebody"));
        check(view("nat", "OTHER", vec![rule(None, &[1])]), none(), None);
        check(none(), view("istio-ambient-nat", "output", vec![rule(None, &[1])]), Some("istio-ambient-nat"));
        check(none(), view("istio-proxy-nat", "output", vec![]), Some("sidecar"));
        for to in ["ISTIO_REDIRECT", "ISTIO_IN_REDIRECT"] {
            let both = vec![rule(Some(to), &[]), rule(None, &[0x539, 0xfff])];
            check(view("nat", "ISTIO_OUTPUT", both.clone()), none(), Some("sidecar"));
            check(view("mangle", "ISTIO_OUTPUT", both), none(), None);
        }
    }
}
