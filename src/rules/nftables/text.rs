//! Tables as input of `nft -f`, one command a line.

use super::{Base, Chain, Of, Rule, Side, Statement, Table};
use crate::rules::family::Family;
use crate::rules::host::probe_set;
use crate::rules::ruleset::{BuiltIn, ConnState};
use std::fmt::{self, Display, Formatter, Write as _};

/// The input that puts the tables in place of those of the same names, in one transaction. A table with sets stays,
/// because others have filled them.
pub fn script(tables: &[Table]) -> String {
    let mut text = String::new();
    for Table { name, sets, chains } in tables {
        let _ = writeln!(text, "add table inet {name}");
        if sets.is_empty() {
            let _ = writeln!(text, "delete table inet {name}\nadd table inet {name}");
        }
        for family in sets {
            let _ = writeln!(text, "add set inet {name} {} {{ type {}_addr; }}", probe_set(*family), long(*family));
        }
        for Chain { name: chain, base, .. } in chains {
            let _ = write!(text, "add chain inet {name} {chain}");
            let _ = match base {
                None => writeln!(text),
                Some(Base { kind, hook, priority }) => {
                    let hook = hook_name(*hook);
                    writeln!(text, " {{ type {kind} hook {hook} priority {priority}; policy accept; }}")
                }
            };
            if !sets.is_empty() {
                let _ = writeln!(text, "flush chain inet {name} {chain}");
            }
        }
        for Chain { name: chain, rules, .. } in chains {
            for rule in rules {
                let _ = writeln!(text, "add rule inet {name} {chain}{rule}");
            }
        }
    }
    text
}

fn hook_name(hook: BuiltIn) -> &'static str {
    match hook {
        BuiltIn::Prerouting => "prerouting",
        BuiltIn::Output => "output",
        BuiltIn::Postrouting => "postrouting",
    }
}

/// Each statement preceded by a blank.
impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (conditions, steps) = self.parts();
        conditions.iter().try_for_each(|one| write!(f, " {one}"))?;
        f.write_str(" counter")?;
        steps.iter().try_for_each(|one| write!(f, " {one}"))
    }
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Statement::Family(family) => write!(f, "meta nfproto {}", long(*family)),
            Statement::Protocol(not, protocol) => write!(f, "meta l4proto {}{}", unequal(*not), protocol.as_str()),
            Statement::Address(side, not, net) => {
                let (ip, side) = (short(Family::of(net.addr())), letter(*side));
                write!(f, "{ip} {side}addr {}{net}", unequal(*not))
            }
            Statement::InSet(not, family) => {
                write!(f, "{} daddr {}@{}", short(*family), unequal(*not), probe_set(*family))
            }
            Statement::From(not, name) => write!(f, "iifname {}\"{name}\"", unequal(*not)),
            Statement::To(not, name) => write!(f, "oifname {}\"{name}\"", unequal(*not)),
            Statement::Port(side, not, protocol, port) => {
                write!(f, "{} {}port {}{port}", protocol.as_str(), letter(*side), unequal(*not))
            }
            Statement::Mark(of, not, mark) if mark.mask == u32::MAX => {
                write!(f, "{of} mark {}{:#x}", unequal(*not), mark.value)
            }
            Statement::Mark(of, not, mark) => {
                let relation = if *not { "!=" } else { "==" };
                write!(f, "{of} mark & {:#x} {relation} {:#x}", mark.mask, mark.value)
            }
            Statement::User(not, uid) => write!(f, "meta skuid {}{uid}", unequal(*not)),
            Statement::Group(not, gid) => write!(f, "meta skgid {}{gid}", unequal(*not)),
            Statement::Socket => write!(f, "meta skuid != {}", u32::MAX),
            Statement::State(not, states) => {
                let names: Vec<&str> = states.iter().map(|state| state_name(*state)).collect();
                write!(f, "ct state {}{}", if *not { "! " } else { "" }, names.join(","))
            }
            Statement::SetMark(of, mark) if mark.mask == u32::MAX => write!(f, "{of} mark set {:#x}", mark.value),
            Statement::SetMark(of, mark) => {
                write!(f, "{of} mark set {of} mark & {:#x} | {:#x}", !mark.mask, mark.value)
            }
            Statement::CopyMark(Of::Packet) => write!(f, "meta mark set ct mark"),
            Statement::CopyMark(Of::Connection) => write!(f, "ct mark set meta mark"),
            Statement::Zone(zone) => write!(f, "ct zone set {zone}"),
            Statement::Tproxy(family, port) => write!(f, "tproxy {} to :{port}", short(*family)),
            Statement::Redirect(port) => write!(f, "redirect to :{port}"),
            Statement::SourceNat(address) => write!(f, "snat {} to {address}", short(Family::of(*address))),
            Statement::Accept => f.write_str("accept"),
            Statement::Drop => f.write_str("drop"),
            Statement::Return => f.write_str("return"),
            Statement::Jump(chain) => write!(f, "jump {chain}"),
        }
    }
}

impl Display for Of {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Of::Packet => "meta",
            Of::Connection => "ct",
        })
    }
}

fn unequal(not: bool) -> &'static str {
    if not { "!= " } else { "" }
}

fn letter(side: Side) -> char {
    match side {
        Side::Source => 's',
        Side::Destination => 'd',
    }
}

fn short(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

fn long(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

fn state_name(state: ConnState) -> &'static str {
    match state {
        ConnState::Invalid => "invalid",
        ConnState::Established => "established",
        ConnState::Related => "related",
    }
}
