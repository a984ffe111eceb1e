//! What an inspection of a namespace found not to be as it should be.

use crate::rules::preceding::Preceding;
use std::collections::BTreeSet;

/// What is not as it should be, one clause each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// In the tables of the packet filter.
    pub rules: Vec<String>,
    /// Outside of them: policy rules, routes, addresses.
    pub routes: Vec<String>,
    /// The rules of others that packets come to before ours. They were there when ours were appended, or were put there
    /// since; that alone is no difference, for it is not ours to move them.
    pub preceding: Vec<Preceding>,
    /// No interface has one of the pod's addresses, so that no rule sees its packets: its runtime has taken them over.
    pub bypassed: bool,
    /// The TCP ports on which somebody listens there; `None` if that was not asked, or cannot be told.
    pub listening: Option<BTreeSet<u16>>,
}

impl Differences {
    /// All is as it should be.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.routes.is_empty()
    }

    /// All clauses, of either kind.
    pub fn all(mut self) -> Vec<String> {
        self.rules.append(&mut self.routes);
        self.rules
    }
}
