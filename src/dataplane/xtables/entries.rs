//! The entries of a legacy table, decoded into views. Pure.
//!
//! Formats: `linux/netfilter_ipv4/ip_tables.h`, `linux/netfilter_ipv6/ip6_tables.h`, `linux/netfilter/x_tables.h`. A
//! table is one block of entries. Offsets mark the built-in chains; an entry with the target `ERROR` carries the name of
//! a user chain; each chain ends with an entry of its own (policy, return).

use super::ipset::{SetNames, name_set};
use crate::error::Result;
use crate::invalid;
use crate::rules::family::Family;
use crate::rules::view::{Attachment, ChainView, RuleView, TableView};
use std::collections::BTreeMap;

/// Names of the hooks, by number.
const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// `XT_TABLE_MAXNAMELEN`.
pub(super) const NAME_SIZE: usize = 32;
/// Size of `struct ipt_getinfo`: name, valid hooks, hook entries, underflows, number of entries, size.
pub const INFO_SIZE: usize = NAME_SIZE + 4 + 20 + 20 + 4 + 4;
/// `struct xt_entry_target` before its data: size, name, revision.
const TARGET_HEADER: usize = 32;

/// What differs between the families.
pub(super) struct Layout {
    /// Socket option level.
    pub(super) level: i32,
    /// Names of the tables that exist.
    pub(super) names: &'static str,
    /// Size of the address part (`struct ipt_ip`, `struct ip6t_ip6`) without trailing padding.
    header: usize,
    /// Where `target_offset` is; `next_offset` follows.
    offsets: usize,
    /// Size of `struct ipt_entry`; matches follow.
    entry: usize,
}

const V4: Layout = Layout {
    level: libc::IPPROTO_IP,
    names: "/proc/thread-self/net/ip_tables_names",
    header: 84,
    offsets: 88,
    entry: 112,
};
const V6: Layout = Layout {
    level: libc::IPPROTO_IPV6,
    names: "/proc/thread-self/net/ip6_tables_names",
    header: 133,
    offsets: 140,
    entry: 168,
};

impl Layout {
    pub(super) fn of(family: Family) -> &'static Layout {
        match family {
            Family::V4 => &V4,
            Family::V6 => &V6,
        }
    }
}

/// Decodes one table: its `struct ipt_getinfo` and the block of its entries. `sets` gives ipsets their names. Pure.
pub fn decode(family: Family, info: &[u8], entries: &[u8], sets: SetNames<'_>) -> Result<TableView> {
    let layout = Layout::of(family);
    let size = number(info, INFO_SIZE - 4)? as usize;
    if size != entries.len() {
        return Err(invalid!("legacy table: {} bytes, {size} were announced", entries.len()));
    }
    let mut attached = hooks(info)?;
    let mut chains: Vec<(String, ChainView)> = Vec::new();
    let mut starts: BTreeMap<usize, String> = BTreeMap::new();
    let mut parsed = Vec::new();
    let mut offset = 0;
    while offset < entries.len() {
        let entry = Entry::parse(layout, entries, offset)?;
        let next = offset + entry.size;
        if let Some(name) = entry.chain_head() {
            // The last entry closes the table; it has no rules after it.
            if next < entries.len() {
                starts.insert(next, name.clone());
                chains.push((name, ChainView::default()));
            }
        } else {
            if let Some((hook, name)) = attached.remove(&offset) {
                let attachment = Attachment { hook, priority: 0, kind: String::new(), accepts: None };
                chains.push((name.to_owned(), ChainView { attached: Some(attachment), rules: vec![] }));
            }
            let chain = chains.len().checked_sub(1).ok_or_else(|| invalid!("a rule outside of every chain"))?;
            parsed.push((chain, next, entry));
        }
        offset = next;
    }
    if let Some((_, (_, name))) = attached.first_key_value() {
        return Err(invalid!("legacy table: {name} starts in the middle of a rule"));
    }
    for (chain, next, entry) in parsed {
        if let Some((_, view)) = chains.get_mut(chain) {
            view.rules.push(entry.rule(next, &starts, sets)?);
        }
    }
    for (_, view) in &mut chains {
        // Its policy, or the return at its end.
        view.rules.pop();
    }
    Ok(TableView { dormant: false, chains: chains.into_iter().collect() })
}

/// Number and name of the valid hooks, by the offset at which their chain starts.
fn hooks(info: &[u8]) -> Result<BTreeMap<usize, (u32, &'static str)>> {
    let valid = number(info, NAME_SIZE)?;
    let mut starts = BTreeMap::new();
    for (hook, name) in (0..).zip(HOOKS).filter(|(hook, _)| valid & (1 << hook) != 0) {
        starts.insert(number(info, NAME_SIZE + 4 + 4 * hook as usize)? as usize, (hook, name));
    }
    Ok(starts)
}

/// One entry: address part, matches, target.
struct Entry<'a> {
    header: &'a [u8],
    matches: &'a [u8],
    target: &'a [u8],
    size: usize,
}

impl<'a> Entry<'a> {
    fn parse(layout: &Layout, entries: &'a [u8], offset: usize) -> Result<Self> {
        let bad = || invalid!("legacy table: the entry at {offset} does not fit into {} bytes", entries.len());
        let bytes = entries.get(offset..).ok_or_else(bad)?;
        let header = bytes.get(..layout.header).ok_or_else(bad)?;
        let target = usize::from(short(bytes, layout.offsets)?);
        let size = usize::from(short(bytes, layout.offsets + 2)?);
        if size < layout.entry + TARGET_HEADER {
            return Err(bad());
        }
        Ok(Entry {
            header,
            matches: bytes.get(layout.entry..target).ok_or_else(bad)?,
            target: bytes.get(target..size).filter(|t| t.len() >= TARGET_HEADER).ok_or_else(bad)?,
            size,
        })
    }

    /// Name of the target's module; empty for verdicts and jumps.
    fn target_name(&self) -> String {
        text(self.target.get(2..TARGET_HEADER - 1).unwrap_or_default())
    }

    /// Name of the chain that starts after this entry.
    fn chain_head(&self) -> Option<String> {
        let data = self.target.get(TARGET_HEADER..).unwrap_or_default();
        (self.target_name() == "ERROR").then(|| text(data))
    }

    /// The rule. `next` is the offset after it, `starts` are those of the first rules of user chains.
    fn rule(&self, next: usize, starts: &BTreeMap<usize, String>, sets: SetNames<'_>) -> Result<RuleView> {
        let mut body = [self.header, self.matches].concat();
        name_sets(&mut body, self.header.len(), sets)?;
        let mut jump = None;
        if self.target_name().is_empty() {
            let verdict = number(self.target, TARGET_HEADER)?.cast_signed();
            match usize::try_from(verdict) {
                // A verdict of the kernel: accept, drop, return.
                Err(_) => body.extend_from_slice(&verdict.to_ne_bytes()),
                // No target at all: on to the next rule.
                Ok(to) if to == next => body.extend_from_slice(b"next"),
                Ok(to) => {
                    let chain = starts.get(&to).ok_or_else(|| invalid!("legacy table: a jump to {to}, no chain"))?;
                    body.extend_from_slice(b"jump ");
                    body.extend_from_slice(chain.as_bytes());
                    jump = Some(chain.clone());
                }
            }
        } else {
            body.extend_from_slice(self.target);
        }
        let plain = jump.is_some() && self.matches.is_empty() && self.header.iter().all(|byte| *byte == 0);
        Ok(RuleView { jump, plain, body })
    }
}

/// Replaces the numbers of ipsets in matches, which begin at `at`, by names: numbers differ between namespaces.
fn name_sets(body: &mut Vec<u8>, mut at: usize, sets: SetNames<'_>) -> Result<()> {
    /// `struct xt_entry_match` before its data: size, name, revision.
    const MATCH_HEADER: usize = 32;
    let end = body.len();
    while at < end {
        let size = usize::from(short(body, at)?);
        let one = body.get_mut(at..end.min(at + size)).filter(|one| one.len() == size && size >= MATCH_HEADER);
        let one = one.ok_or_else(|| invalid!("legacy table: a match of {size} bytes does not fit"))?;
        let (head, data) = one.split_at_mut(MATCH_HEADER);
        if text(head.get(2..MATCH_HEADER - 1).unwrap_or_default()) == "set" {
            let name = name_set(data, sets);
            body.extend_from_slice(name.as_bytes());
        }
        at += size;
    }
    Ok(())
}

pub(super) fn number(bytes: &[u8], at: usize) -> Result<u32> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map(|b| u32::from_ne_bytes(*b)).ok_or_else(|| invalid!("legacy table: {} bytes, cut off", bytes.len()))
}

fn short(bytes: &[u8], at: usize) -> Result<u16> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map(|b| u16::from_ne_bytes(*b)).ok_or_else(|| invalid!("legacy table: {} bytes, cut off", bytes.len()))
}

/// A text that ends with a zero byte or with its field.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let name = field.get(..end).unwrap_or_default();
    // Names of others may be anything; they need only differ from ours.
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nat tables of a namespace with a plain pod's rules in both families, beside a chain of somebody else.
    const RECORDED: [(Family, &[u8], &[u8]); 2] = [
        (
            Family::V4,
            include_bytes!("../../../test-fixtures/rules/legacy-nat.ipv4.info"),
            include_bytes!("../../../test-fixtures/rules/legacy-nat.ipv4.entries"),
        ),
        (
            Family::V6,
            include_bytes!("../../../test-fixtures/rules/legacy-nat.ipv6.info"),
            include_bytes!("../../../test-fixtures/rules/legacy-nat.ipv6.entries"),
        ),
    ];

    #[test]
    fn a_table_is_decoded() {
        for (family, info, entries) in RECORDED {
            let nat = decode(family, info, entries, &|_| None).unwrap();
            let counts: Vec<_> = nat.chains.iter().map(|(name, chain)| (name.as_str(), chain.rules.len())).collect();
            let ours = [("FOREIGN", 2), ("INPUT", 0), ("ISTIO_OUTPUT", 4), ("ISTIO_PRERT", 2), ("OUTPUT", 2)];
            assert_eq!(counts, [&ours[..], &[("POSTROUTING", 0), ("PREROUTING", 1)]].concat());
            assert_eq!(nat.chains["OUTPUT"].attached.as_ref().map(|a| a.hook), Some(3));
            assert_eq!(nat.chains["FOREIGN"].attached, None);
            let jumps = |chain| -> Vec<_> { nat.rules(chain).iter().map(|r| (r.jump.as_deref(), r.plain)).collect() };
            assert_eq!(jumps("OUTPUT"), [(Some("FOREIGN"), false), (Some("ISTIO_OUTPUT"), true)]);
            assert_eq!(jumps("FOREIGN"), [(Some("ISTIO_OUTPUT"), false), (None, false)]);
            assert_eq!(jumps("ISTIO_PRERT"), [(None, false), (None, false)]);
        }
    }

    #[test]
    fn cut_or_changed_anywhere_it_is_refused_or_decoded_but_never_more() {
        for (family, info, entries) in RECORDED {
            for end in 0..info.len() {
                assert!(decode(family, &info[..end], entries, &|_| None).is_err(), "information cut to {end}");
            }
            for end in 0..entries.len() {
                assert!(decode(family, info, &entries[..end], &|_| None).is_err(), "entries cut to {end}");
                // The same, announced as such.
                let size = u32::try_from(end).unwrap().to_ne_bytes();
                let _ = decode(family, &[&info[..INFO_SIZE - 4], &size].concat(), &entries[..end], &|_| None);
                for value in [0, 1, 0x7f, 0xff] {
                    let mut changed = entries.to_vec();
                    changed[end] = value;
                    let _ = decode(family, info, &changed, &|_| None);
                }
            }
        }
    }
}
