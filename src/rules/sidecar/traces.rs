//! Rules of ours in built-in chains, told by their form from those of others, whatever the settings they came from.
//!
//! Most rules of a pod with a sidecar stand in chains of our own. In built-in chains stand the rules that lead there,
//! and some that lead nowhere: those are ours only together with what we know is ours. A mark is ours if our own chain
//! asks for it; an interface is excluded by us if it is passed over right before our own chain is called, and on the
//! way in as well.

use super::{INBOUND, OUTPUT, REDIRECT};
use crate::rules::diff::Found;
use crate::rules::ruleset::{BuiltIn, TableName};
use std::collections::BTreeSet;

/// Forms of rules, as iptables-save writes them. `*` is any word, `<mark>` a mark of ours, `<excluded>` and
/// `<rerouted>` an interface of ours.
const FORMS: &[(TableName, BuiltIn, &str)] = {
    use BuiltIn::{Output, Prerouting};
    use TableName::{Mangle, Nat, Raw};
    &[
        (Nat, Prerouting, "-i * -j ISTIO_REDIRECT"),
        (Nat, Prerouting, "-d * -i * -j ISTIO_REDIRECT"),
        (Nat, Prerouting, "-i <rerouted> -j RETURN"),
        (Nat, Prerouting, "-i <excluded> -j RETURN"),
        (Nat, Prerouting, "-p tcp -j ISTIO_INBOUND"),
        (Nat, Output, "-o <excluded> -j RETURN"),
        (Nat, Output, "-j ISTIO_OUTPUT"),
        (Mangle, Prerouting, "-i <excluded> -j RETURN"),
        (Mangle, Prerouting, "-m conntrack --ctstate INVALID -j ISTIO_DROP"),
        (Mangle, Prerouting, "-p tcp -j ISTIO_INBOUND"),
        (
            Mangle,
            Prerouting,
            "-p tcp -m mark --mark <mark> -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff",
        ),
        (Mangle, Output, "-o <excluded> -j RETURN"),
        (Mangle, Output, "-o lo -p tcp -m mark --mark <mark> -j RETURN"),
        (Mangle, Output, "! -d * -o lo -p tcp -m owner --uid-owner * -j MARK --set-xmark 0x53a/0xffffffff"),
        (Mangle, Output, "! -d * -o lo -p tcp -m owner --gid-owner * -j MARK --set-xmark 0x53a/0xffffffff"),
        (
            Mangle,
            Output,
            "-p tcp -m connmark --mark <mark> -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff",
        ),
        (Raw, Output, "-j ISTIO_OUTPUT_DNS"),
        (Raw, Prerouting, "-j ISTIO_INBOUND"),
    ]
};

/// What is ours in the output of `iptables-save`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Traces {
    marks: BTreeSet<String>,
    excluded: BTreeSet<String>,
    rerouted: BTreeSet<String>,
}

impl Traces {
    /// Learns from the chains of one family. What one family tells is good for the other too.
    pub fn learn(&mut self, save: &str) {
        let rules: Vec<Saved<'_>> = read(save).collect();
        let of = |table: TableName, chain: &'static str| {
            rules.iter().filter(move |rule| rule.table == table && rule.chain == chain).map(|rule| rule.words())
        };
        for words in of(TableName::Mangle, INBOUND) {
            if let ["-p", "tcp", "-m", "mark", "--mark", mark, "-j", "RETURN"] = *words {
                self.marks.insert(mark.to_owned());
            }
        }
        let inwards: Vec<_> = of(TableName::Nat, BuiltIn::Prerouting.as_str()).collect();
        for words in &inwards {
            if let ["-i", name, "-j", target] | ["-d", _, "-i", name, "-j", target] = **words
                && target == REDIRECT
            {
                self.rerouted.insert(name.to_owned());
            }
        }
        let mut passed_over = Vec::new();
        for words in of(TableName::Nat, BuiltIn::Output.as_str()) {
            match *words {
                ["-o", name, "-j", "RETURN"] => passed_over.push(name.to_owned()),
                ["-j", OUTPUT] => {
                    let twin = |name: &String| inwards.iter().any(|words| **words == ["-i", name, "-j", "RETURN"]);
                    self.excluded.extend(passed_over.drain(..).filter(twin));
                }
                _ => passed_over.clear(),
            }
        }
    }

    /// The marks of ours.
    pub fn marks(&self) -> impl Iterator<Item = u32> {
        self.marks.iter().filter_map(|mark| u32::from_str_radix(mark.strip_prefix("0x")?, 16).ok())
    }

    /// The rules of ours in built-in chains.
    pub fn find(&self, save: &str) -> Vec<Found> {
        let found = read(save).filter_map(|rule| {
            let chain = BuiltIn::ALL.into_iter().find(|chain| chain.as_str() == rule.chain)?;
            let words = rule.words();
            let of_form = |form: &(TableName, BuiltIn, &str)| (form.0, form.1) == (rule.table, chain);
            let ours = FORMS.iter().filter(|form| of_form(form)).any(|(.., form)| self.has_form(&words, form));
            ours.then(|| Found { table: rule.table, chain, at: rule.at, text: format!(" {}", rule.spec) })
        });
        found.collect()
    }

    fn has_form(&self, words: &[&str], form: &str) -> bool {
        let form: Vec<&str> = form.split(' ').collect();
        form.len() == words.len()
            && form.iter().zip(words).all(|(wanted, word)| match *wanted {
                "*" => true,
                "<mark>" => *word == "0x539" || self.marks.contains(*word),
                "<excluded>" => self.excluded.contains(*word),
                "<rerouted>" => self.rerouted.contains(*word),
                _ => wanted == word,
            })
    }
}

/// A rule as iptables-save writes it.
struct Saved<'a> {
    table: TableName,
    chain: &'a str,
    /// Number in its chain, from 0.
    at: usize,
    spec: &'a str,
}

impl<'a> Saved<'a> {
    fn words(&self) -> Vec<&'a str> {
        self.spec.split(' ').collect()
    }
}

fn read(save: &str) -> impl Iterator<Item = Saved<'_>> {
    let (mut table, mut chain, mut next) = (None, "", 0);
    save.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            table = TableName::ALL.into_iter().find(|table| table.as_str() == name);
            (chain, next) = ("", 0);
        }
        let (name, spec) = line.strip_prefix("-A ")?.split_once(' ')?;
        if name != chain {
            (chain, next) = (name, 0);
        }
        next += 1;
        Some(Saved { table: table?, chain, at: next - 1, spec })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = include_str!("../../../test-fixtures/rules/sidecar-among-others.save");

    fn found(save: &str) -> Vec<String> {
        let mut traces = Traces::default();
        traces.learn(save);
        let line =
            |found: Found| format!("{} {} {}{}", found.table.as_str(), found.chain.as_str(), found.at, found.text);
        traces.find(save).into_iter().map(line).collect()
    }

    #[test]
    fn what_is_ours_among_others() {
        let want: Vec<&str> = include_str!("../../../test-fixtures/rules/sidecar-among-others.ours").lines().collect();
        assert_eq!(found(SAVED), want);
    }

    #[test]
    fn without_our_chains_nothing_is_ours() {
        let others = "*nat\n-A PREROUTING -i eth1 -j RETURN\n-A OUTPUT -o eth1 -j RETURN\nCOMMIT\n*mangle\n\
                      -A OUTPUT -o lo -p tcp -m mark --mark 0x1 -j RETURN\nCOMMIT\n";
        assert_eq!(found(others), Vec::<String>::new());
    }

    #[test]
    fn cut_anywhere_it_is_read_all_the_same() {
        for end in 0..SAVED.len() {
            let ours = found(&SAVED[..end]).len();
            assert!(ours <= found(SAVED).len(), "cut to {end}");
        }
    }
}
