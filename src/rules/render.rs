//! Rule sets as input of `iptables-restore --noflush`.

use super::ruleset::{BuiltIn, Chain, ConnState, Hook, Match, Place, Port, Rule, RuleSet, TableName, Target, Test};
use std::fmt::{self, Display, Formatter};

/// The input that puts a rule set into a namespace that has nothing of ours yet.
pub fn restore(rules: &RuleSet) -> String {
    let whole = rules.tables.iter().map(|table| TableEdit {
        fill: table.chains.iter().collect(),
        add: table.hooks.iter().map(|hook| (position(hook, &table.hooks), hook)).collect(),
        ..TableEdit::new(table.name)
    });
    whole.map(|edit| edit.to_string()).collect()
}

/// Position, counted from 1, of a hook that stands first among the rules of its chain; `None` for one that is
/// appended. `all` are the hooks of its table.
pub fn position(hook: &Hook, all: &[Hook]) -> Option<usize> {
    let earlier = all.iter().take_while(|other| *other != hook);
    let before = earlier.filter(|other| other.chain == hook.chain && other.place == Place::First).count();
    (hook.place == Place::First).then_some(before + 1)
}

/// What is to be changed in one table, all of it in one COMMIT: no packet sees a state in between.
#[derive(Debug)]
pub struct TableEdit<'a> {
    /// Which table.
    pub table: TableName,
    /// Chains that are made, or emptied and filled anew.
    pub fill: Vec<&'a Chain>,
    /// Rules of built-in chains that are taken out, the first copy of each; as written after the chain's name.
    pub delete: Vec<(BuiltIn, String)>,
    /// Rules that are put into built-in chains, with their [`position`].
    pub add: Vec<(Option<usize>, &'a Hook)>,
    /// Chains that are emptied.
    pub flush: Vec<&'static str>,
    /// Chains that are removed; flushed before.
    pub drop: Vec<&'static str>,
}

impl TableEdit<'_> {
    /// No change of `table`.
    pub fn new(table: TableName) -> Self {
        TableEdit { table, fill: vec![], delete: vec![], add: vec![], flush: vec![], drop: vec![] }
    }

    /// Nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.fill.is_empty() && self.delete.is_empty() && self.add.is_empty() && self.flush.is_empty()
    }
}

impl Display for TableEdit<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        writeln!(f, "*{}", self.table.as_str())?;
        for chain in &self.fill {
            writeln!(f, ":{} - [0:0]", chain.name)?;
        }
        for (chain, text) in &self.delete {
            writeln!(f, "-D {}{text}", chain.as_str())?;
        }
        for (position, hook) in &self.add {
            match position {
                None => writeln!(f, "-A {}{}", hook.chain.as_str(), hook.rule)?,
                Some(n) => writeln!(f, "-I {} {n}{}", hook.chain.as_str(), hook.rule)?,
            }
        }
        for chain in &self.fill {
            for rule in &chain.rules {
                writeln!(f, "-A {}{rule}", chain.name)?;
            }
        }
        for chain in &self.flush {
            writeln!(f, "-F {chain}")?;
        }
        for chain in &self.drop {
            writeln!(f, "-X {chain}")?;
        }
        writeln!(f, "COMMIT")
    }
}

/// Matches and target as on a command line, each preceded by a blank.
impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for one in &self.matches {
            write!(f, "{one}")?;
        }
        write!(f, " {}", self.target)
    }
}

impl Display for Match {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let not = if self.negated { " !" } else { "" };
        match &self.test {
            Test::Source(net) => write!(f, "{not} -s {net}"),
            Test::Destination(net) => write!(f, "{not} -d {net}"),
            Test::InInterface(name) => write!(f, "{not} -i {name}"),
            Test::OutInterface(name) => write!(f, "{not} -o {name}"),
            Test::Protocol(protocol) => write!(f, "{not} -p {}", protocol.as_str()),
            Test::Header(protocol, None) => write!(f, " -m {}", protocol.as_str()),
            Test::Header(protocol, Some(Port::Source(port))) => {
                write!(f, " -m {}{not} --sport {port}", protocol.as_str())
            }
            Test::Header(protocol, Some(Port::Destination(port))) => {
                write!(f, " -m {}{not} --dport {port}", protocol.as_str())
            }
            Test::Mark(mark) => write!(f, " -m mark{not} --mark {:#x}/{:#x}", mark.value, mark.mask),
            Test::ConnMark(mark) => write!(f, " -m connmark{not} --mark {:#x}/{:#x}", mark.value, mark.mask),
            Test::User(uid) => write!(f, " -m owner{not} --uid-owner {uid}"),
            Test::Group(gid) => write!(f, " -m owner{not} --gid-owner {gid}"),
            Test::Ports(_, ports) => write!(f, " -m multiport{not} --dports {}", joined(ports)),
            Test::ConnState(states) => {
                let names: Vec<&str> = states.iter().map(|state| state_name(*state)).collect();
                write!(f, " -m conntrack{not} --ctstate {}", names.join(","))
            }
            Test::LocalSocket => write!(f, " -m owner{not} --socket-exists"),
            Test::DestinationSet(name) => write!(f, " -m set{not} --match-set {name} dst"),
        }
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Target::Accept => write!(f, "-j ACCEPT"),
            Target::Return => write!(f, "-j RETURN"),
            Target::Jump(chain) => write!(f, "-j {chain}"),
            Target::Redirect(port) => write!(f, "-j REDIRECT --to-ports {port}"),
            Target::SetConnMark(mark) => write!(f, "-j CONNMARK --set-xmark {:#x}/{:#x}", mark.value, mark.mask),
            Target::Drop => write!(f, "-j DROP"),
            Target::SetMark(mark) => write!(f, "-j MARK --set-xmark {:#x}/{:#x}", mark.value, mark.mask),
            Target::Tproxy { port, mark } => {
                write!(f, "-j TPROXY --on-port {port} --tproxy-mark {:#x}/{:#x}", mark.value, mark.mask)
            }
            Target::SaveMark => write!(f, "-j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff"),
            Target::RestoreMark => {
                write!(f, "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff")
            }
            Target::Zone(zone) => write!(f, "-j CT --zone {zone}"),
            Target::SourceNat(address) => write!(f, "-j SNAT --to-source {address}"),
        }
    }
}

fn joined(ports: &[u16]) -> String {
    ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

/// The word that iptables writes.
fn state_name(state: ConnState) -> &'static str {
    match state {
        ConnState::Invalid => "INVALID",
        ConnState::Established => "ESTABLISHED",
        ConnState::Related => "RELATED",
    }
}
