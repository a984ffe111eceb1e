//! What is put into a network namespace for one purpose: rules by family, and what these need besides. A value: the
//! same mechanism applies, checks and removes every program.

use super::family::Family;
use super::routing::{LocalRoute, MarkRule};
use super::ruleset::RuleSet;
use std::net::Ipv6Addr;

/// What a program is for; decides what in a namespace is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A pod of the ambient mesh.
    Ambient,
    /// A pod with a sidecar.
    Sidecar,
    /// The host.
    Host,
}

impl Purpose {
    /// Rules of ours in built-in chains may be more than plain jumps: what earlier settings left is told by its form.
    pub fn has_conditional_hooks(self) -> bool {
        self == Purpose::Sidecar
    }
}

/// Something outside the packet filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// A policy rule by mark.
    Rule(MarkRule),
    /// A route to the local host.
    Route(LocalRoute),
    /// An address of `lo`, alone in its prefix.
    Loopback(Ipv6Addr),
}

impl Effect {
    /// The family it belongs to.
    pub fn family(&self) -> Family {
        match self {
            Effect::Rule(rule) => rule.family,
            Effect::Route(route) => route.family,
            Effect::Loopback(_) => Family::V6,
        }
    }

    /// A routing decision by mark and where it leads.
    pub fn routing((rule, route): (MarkRule, LocalRoute)) -> [Effect; 2] {
        [Effect::Rule(rule), Effect::Route(route)]
    }
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// What it is for.
    pub purpose: Purpose,
    /// The rules by family. One without tables is a family in which nothing of ours should be; one that is not listed is left
    /// alone.
    pub rules: Vec<RuleSet>,
    /// What must be there besides.
    pub wanted: Vec<Effect>,
    /// What other settings may have left.
    pub unwanted: Vec<Effect>,
}

impl Program {
    /// This program with nothing wanted: to apply it is to remove.
    #[must_use]
    pub fn emptied(mut self) -> Self {
        for set in &mut self.rules {
            set.tables.clear();
        }
        self.unwanted.append(&mut self.wanted);
        self
    }

    /// This program without anything of one family.
    #[must_use]
    pub fn without(mut self, family: Family) -> Self {
        self.rules.retain(|set| set.family != family);
        for effects in [&mut self.wanted, &mut self.unwanted] {
            effects.retain(|effect| effect.family() != family);
        }
        self
    }

    /// How many rules there are.
    pub fn count(&self) -> usize {
        self.rules.iter().map(|set| set.rules().count()).sum()
    }

    /// Whether a rule asks whose process sends.
    pub fn matches_owners(&self) -> bool {
        self.rules.iter().any(RuleSet::matches_owners)
    }

    /// Whether there are rules for a family.
    pub fn programs(&self, family: Family) -> bool {
        self.rules.iter().any(|set| set.family == family && !set.tables.is_empty())
    }
}
