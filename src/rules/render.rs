//! Rule sets as input of `iptables-restore --noflush`.

use super::ruleset::{ConnState, Hook, Match, Place, Port, Rule, RuleSet, Target, Test};
use std::fmt::{self, Display, Formatter};

/// The input that puts a rule set into a namespace that has nothing of ours yet.
pub fn restore(rules: &RuleSet) -> String {
    let mut text = String::new();
    for table in &rules.tables {
        text += &format!("*{}\n", table.name.as_str());
        for chain in &table.chains {
            text += &format!(":{} - [0:0]\n", chain.name);
        }
        for hook in &table.hooks {
            text += &format!("{}\n", add_hook(hook, &table.hooks));
        }
        for chain in &table.chains {
            for rule in &chain.rules {
                text += &format!("-A {}{rule}\n", chain.name);
            }
        }
        text += "COMMIT\n";
    }
    text
}

/// The line that puts a hook where it belongs among `all` hooks of its table.
pub fn add_hook(hook: &Hook, all: &[Hook]) -> String {
    let (chain, rule) = (hook.chain.as_str(), &hook.rule);
    match hook.place {
        Place::Last => format!("-A {chain}{rule}"),
        Place::First => format!("-I {chain} {}{rule}", first_position(hook, all)),
    }
}

/// Position, counted from 1, of a hook that stands [`Place::First`].
fn first_position(hook: &Hook, all: &[Hook]) -> usize {
    let earlier = all.iter().take_while(|other| *other != hook);
    1 + earlier.filter(|other| other.chain == hook.chain && other.place == Place::First).count()
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

/// As iptables writes it.
fn state_name(state: ConnState) -> &'static str {
    match state {
        ConnState::Invalid => "INVALID",
        ConnState::Established => "ESTABLISHED",
        ConnState::Related => "RELATED",
    }
}
