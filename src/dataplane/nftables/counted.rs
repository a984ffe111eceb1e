//! What rules of nf_tables have counted, in the calling thread's network namespace. Formats: `linux/netfilter/nf_tables.h`.

use super::dump;
use super::message::{INET, NEWRULE, RULE_CHAIN, RULE_EXPRESSIONS, RULE_TABLE, open};
use crate::dataplane::scope::Scope;
use crate::error::{Error, Result};
use crate::sys::netlink::RawMessage;
use crate::sys::netlink::attributes::Attributes;
use std::fmt;

const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const COUNTER_BYTES: u16 = 1;
const COUNTER_PACKETS: u16 = 2;
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

/// A rule, by its number in its chain, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The chain it is in.
    pub chain: String,
    /// Its number there.
    pub number: usize,
    /// Packets for which its conditions held; none where it has no counter.
    pub packets: Option<u64>,
    /// Their bytes.
    pub bytes: Option<u64>,
    /// What happens to them, in a word or two.
    pub step: String,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counted { chain, number, packets, bytes, step } = self;
        match (packets, bytes) {
            (Some(packets), Some(bytes)) => write!(f, "[{packets}:{bytes}] {chain} {number} {step}"),
            _ => write!(f, "[-] {chain} {number} {step}"),
        }
    }
}

/// The rules of the tables of both families whose names are wanted, by table.
pub fn rules(wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Vec<Counted>)>> {
    if !dump::is_there()? {
        return Ok(Vec::new());
    }
    let mut all: Vec<(String, Vec<Counted>)> = Vec::new();
    for message in &dump::dump(Scope::Everything, &[])?.rules {
        let Some((table, mut rule)) = counted(message)?.filter(|(table, _)| wanted(table)) else { continue };
        let at = all.iter().position(|(name, _)| *name == table).unwrap_or(all.len());
        if at == all.len() {
            all.push((table, Vec::new()));
        }
        if let Some((_, rules)) = all.get_mut(at) {
            rule.number = rules.iter().filter(|other| other.chain == rule.chain).count() + 1;
            rules.push(rule);
        }
    }
    Ok(all)
}

/// A rule of a table of both families, and the table's name.
fn counted(message: &RawMessage) -> Result<Option<(String, Counted)>> {
    let Some((INET, rule)) = open(message, NEWRULE)? else { return Ok(None) };
    let mut counted = Counted {
        chain: rule.text(RULE_CHAIN)?.into_owned(),
        number: 0,
        packets: None,
        bytes: None,
        step: String::new(),
    };
    for element in rule.nested(RULE_EXPRESSIONS)?.all(LIST_ELEMENT) {
        let expression = Attributes::parse(element)?;
        let (name, data) = (expression.text(EXPRESSION_NAME)?, expression.nested(EXPRESSION_DATA)?);
        let number = |kind| data.get(kind).and_then(|value| value.try_into().ok()).map(u64::from_be_bytes);
        match &*name {
            "counter" => (counted.packets, counted.bytes) = (number(COUNTER_PACKETS), number(COUNTER_BYTES)),
            "redir" => counted.step = "redirect".to_owned(),
            "nat" => counted.step = "snat".to_owned(),
            "tproxy" => counted.step = "tproxy".to_owned(),
            "immediate" => counted.step = verdict(data)?.unwrap_or(counted.step),
            // The last of these sets a mark or a zone, if nothing comes after it.
            "meta" | "ct" if counted.packets.is_some() => counted.step = format!("{name} set"),
            _ => {}
        }
    }
    Ok(Some((rule.text(RULE_TABLE)?.into_owned(), counted)))
}

/// The verdict of an `immediate` expression; `None` for one that loads a value.
fn verdict(immediate: Attributes<'_>) -> Result<Option<String>, Error> {
    let verdict = immediate.nested(IMMEDIATE_DATA)?.nested(DATA_VERDICT)?;
    let Some(code) = verdict.number(VERDICT_CODE)? else { return Ok(None) };
    // NF_DROP, NF_ACCEPT, and the negative ones of enum nft_verdicts.
    Ok(Some(match code.cast_signed() {
        0 => "drop".to_owned(),
        1 => "accept".to_owned(),
        -5 => "return".to_owned(),
        _ => format!("jump {}", verdict.text(VERDICT_CHAIN)?),
    }))
}
