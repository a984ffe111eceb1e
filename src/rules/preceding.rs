//! What others have put where packets come to it before they come to our rules: rules in built-in chains, base chains of
//! nf_tables, policy rules.

use super::family::Family;
use super::ruleset::{BuiltIn, TableName};
use super::view::View;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};

/// `NF_IP_PRI_NAT_DST` (`linux/netfilter_ipv4.h`): where our chains redirect.
const REDIRECTION: i32 = -100;
/// `NF_INET_PRE_ROUTING` and `NF_INET_LOCAL_OUT` (`linux/netfilter.h`): the hooks at which our chains redirect.
const HOOKS: [u32; 2] = [0, 3];

/// Something of somebody else to which packets come before they come to our rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preceding {
    site: Site,
    /// A digest of what it says.
    says: u64,
}

/// Where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Site {
    /// A rule in a built-in chain, by its number there, from 0.
    Rule { chain: (Family, TableName, BuiltIn), at: usize },
    /// A base chain of nf_tables: the family's word, table and chain.
    BaseChain(&'static str, String, String),
    /// A policy rule, by its preference.
    PolicyRule(Family, u32),
}

impl Preceding {
    /// A rule in a built-in chain. `body` is what the kernel shows of it.
    pub fn rule(chain: (Family, TableName, BuiltIn), at: usize, body: &[u8]) -> Self {
        Preceding { site: Site::Rule { chain, at }, says: digest(body) }
    }

    /// A policy rule of this preference. `body` is what the kernel shows of it.
    pub fn policy_rule(family: Family, preference: u32, body: &[u8]) -> Self {
        Preceding { site: Site::PolicyRule(family, preference), says: digest(body) }
    }

    /// The base chains with rules that the kernel calls before those in which our chains redirect: those of lower
    /// priority, and those of the same, of which it calls the one first that came last. `family` is `ip`,
    /// `ip6` or `inet`; tables that are `known` by name are passed over.
    pub fn base_chains(family: &'static str, view: &View, known: impl Fn(&str) -> bool) -> Vec<Self> {
        let mut all = Vec::new();
        for (name, table) in view.tables.iter().filter(|(name, table)| !table.dormant && !known(name)) {
            for (chain, content) in &table.chains {
                let precedes = content.attached.as_ref().is_some_and(|attachment| {
                    let decides = !content.rules.is_empty() || attachment.accepts == Some(false);
                    HOOKS.contains(&attachment.hook) && attachment.priority <= REDIRECTION && decides
                });
                if precedes {
                    let bodies: Vec<&[u8]> = content.rules.iter().map(|rule| rule.body.as_slice()).collect();
                    let site = Site::BaseChain(family, name.clone(), chain.clone());
                    all.push(Preceding { site, says: digest(&bodies) });
                }
            }
        }
        all
    }

    /// Whether it is a rule in a built-in chain of iptables.
    pub fn is_rule(&self) -> bool {
        matches!(self.site, Site::Rule { .. })
    }

    /// The ones of `now` that were not there `before`, wherever in their chain these stand by now.
    pub fn newcomers<'a>(before: &[Preceding], now: &'a [Preceding]) -> Vec<&'a Preceding> {
        let mut known: Vec<&Preceding> = before.iter().collect();
        let is_new = |one: &&Preceding| match known.iter().position(|other| other.is_same(one)) {
            Some(at) => {
                known.swap_remove(at);
                false
            }
            None => true,
        };
        now.iter().filter(is_new).collect()
    }

    fn is_same(&self, other: &Preceding) -> bool {
        let same_site = match (&self.site, &other.site) {
            (Site::Rule { chain, .. }, Site::Rule { chain: of_other, .. }) => chain == of_other,
            (site, of_other) => site == of_other,
        };
        same_site && self.says == other.says
    }
}

impl fmt::Display for Preceding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.site {
            Site::Rule { chain: (family, table, chain), at } => {
                let (family, table, chain) = (family.name(), table.as_str(), chain.as_str());
                write!(f, "{family} rule {} of chain {chain} of table {table}", at + 1)
            }
            Site::BaseChain(family, table, chain) => {
                write!(f, "base chain {chain} of nf_tables' table {family} {table}")
            }
            Site::PolicyRule(family, preference) => write!(f, "{} policy rule {preference}", family.name()),
        }
    }
}

fn digest(what: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::view::{Attachment, ChainView, RuleView, TableView};

    fn view(hook: u32, priority: i32, rules: usize, dormant: bool) -> View {
        let attached = Some(Attachment { hook, priority, kind: "filter".into(), accepts: None });
        let rules = (0..rules).map(|n| RuleView { jump: None, plain: false, body: vec![n as u8] }).collect();
        let chains = [("c".to_owned(), ChainView { attached, rules }), ("called".to_owned(), ChainView::default())];
        View { tables: [("t".to_owned(), TableView { dormant, chains: chains.into() })].into() }
    }

    #[test]
    fn base_chains_that_come_first() {
        let check = |view: View, expected: usize| {
            assert_eq!(Preceding::base_chains("inet", &view, |_| false).len(), expected, "{view:?}");
            assert!(Preceding::base_chains("inet", &view, |name| name == "t").is_empty());
        };
        for hook in [0, 3] {
            check(view(hook, -101, 1, false), 1);
            check(view(hook, -100, 1, false), 1);
            check(view(hook, -99, 1, false), 0);
            check(view(hook, -300, 0, false), 0);
            check(view(hook, -300, 1, true), 0);
        }
        for hook in [1, 2, 4] {
            check(view(hook, -300, 1, false), 0);
        }
        let mut drops = view(0, -300, 0, false);
        let chain = drops.tables.get_mut("t").unwrap().chains.get_mut("c").unwrap();
        chain.attached.as_mut().unwrap().accepts = Some(false);
        check(drops, 1);
    }

    #[test]
    fn newcomers_are_told_from_what_moved() {
        let chain = (Family::V4, TableName::Nat, BuiltIn::Output);
        let rule = |at, body: &[u8]| Preceding::rule(chain, at, body);
        let check = |before: &[Preceding], now: &[Preceding], expected: &[&Preceding]| {
            assert_eq!(Preceding::newcomers(before, now), expected);
        };
        check(&[rule(0, b"a")], &[rule(1, b"a"), rule(0, b"b")], &[&rule(0, b"b")]);
        check(&[rule(0, b"a")], &[rule(0, b"a"), rule(1, b"a")], &[&rule(1, b"a")]);
        let policy = |preference, body: &[u8]| Preceding::policy_rule(Family::V6, preference, body);
        check(&[policy(9, b"a")], &[policy(9, b"a")], &[]);
        check(&[policy(9, b"a")], &[policy(8, b"a"), policy(9, b"b")], &[&policy(8, b"a"), &policy(9, b"b")]);
        let chains = |rules| Preceding::base_chains("ip", &view(0, -200, rules, false), |_| false);
        check(&chains(1), &chains(1), &[]);
        check(&chains(1), &chains(2), &[&chains(2)[0]]);
        let texts = [&policy(8, b""), &chains(1)[0], &rule(0, b"")].map(ToString::to_string);
        let expected =
            ["IPv6 policy rule 8", "base chain c of nf_tables' table ip t", "IPv4 rule 1 of chain OUTPUT of table nat"];
        assert_eq!(texts, expected);
        assert_eq!([policy(8, b""), rule(0, b"")].map(|one| one.is_rule()), [false, true]);
    }
}
