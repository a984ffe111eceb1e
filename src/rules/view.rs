//! What the kernel's packet filter holds, in a form in which two namespaces can be compared.
//!
//! Rules are opaque: the kernel's own description without what changes by itself or from place to place (handles,
//! positions, counters). Only what a comparison needs is told apart.

use std::collections::BTreeMap;

/// The tables of one family, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// The content by name.
    pub tables: BTreeMap<String, TableView>,
}

/// A table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableView {
    /// Switched off as a whole (nf_tables' flag `dormant`): no packet comes by.
    pub dormant: bool,
    /// The content by name.
    pub chains: BTreeMap<String, ChainView>,
}

/// A chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainView {
    /// How the kernel calls it by itself; `None` for a chain that is only jumped to.
    pub attached: Option<Attachment>,
    /// In order.
    pub rules: Vec<RuleView>,
}

/// How a built-in chain is attached to the path of packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Number of the hook (`enum nf_inet_hooks`).
    pub hook: u32,
    /// Order among the chains of one hook.
    pub priority: i32,
    /// nf_tables' chain type (`nat`, `route`, `filter`); empty for legacy tables, which imply it.
    pub kind: String,
    /// Whether it accepts what its rules do not decide; not asked of tables that are not ours.
    pub accepts: Option<bool>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleView {
    /// The chain it leads to.
    pub jump: Option<String>,
    /// It does so for every packet, and nothing else.
    pub plain: bool,
    /// All of the rule, for comparison.
    pub body: Vec<u8>,
}

impl RuleView {
    /// It jumps to `chain` without conditions.
    pub fn is_plain_jump(&self, chain: &str) -> bool {
        self.plain && self.jumps_to(chain)
    }

    /// It leads to `chain`.
    pub fn jumps_to(&self, chain: &str) -> bool {
        self.jump.as_deref() == Some(chain)
    }
}

impl View {
    /// A table; `None` while it has not been made.
    pub fn table(&self, name: &str) -> Option<&TableView> {
        self.tables.get(name)
    }

    /// This view as if chains of these tables and names that the kernel does not call by itself held nothing.
    pub fn without_rules(&self, of: impl Fn(&str, &str) -> bool) -> View {
        let mut view = self.clone();
        for (table, content) in &mut view.tables {
            let called = content.chains.iter_mut().filter(|(chain, it)| it.attached.is_none() && of(table, chain));
            called.for_each(|(_, chain)| chain.rules.clear());
        }
        view
    }
}

impl TableView {
    /// The rules of a chain; none when there is no such chain.
    pub fn rules(&self, chain: &str) -> &[RuleView] {
        self.chains.get(chain).map_or(&[], |c| &c.rules)
    }
}
