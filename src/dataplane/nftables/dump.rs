//! Questions to the kernel's nf_tables about the calling thread's namespace.

use super::message::{
    CHAIN_HOOK, CHAIN_TABLE, CHAIN_USE, GETCHAIN, GETRULE, GETTABLE, INET, NEWCHAIN, NEWTABLE, RULE_CHAIN, RULE_TABLE,
    SUBSYSTEM, TABLE_FLAGS, TABLE_NAME, open,
};
use crate::dataplane::scope::Scope;
use crate::error::{Context, Kind, Result};
use crate::rules::family::Family;
use crate::sys::netlink::attributes::{header, put, put_text};
use crate::sys::netlink::{self, Change, RawMessage};

/// Where iptables keeps its rules.
pub(in crate::dataplane) const IPTABLES_TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

/// What a dump of a whole namespace consists of.
#[derive(Debug, Default)]
pub struct Dump {
    /// Answer to `NFT_MSG_GETTABLE`.
    pub tables: Vec<RawMessage>,
    /// Answer to `NFT_MSG_GETCHAIN`.
    pub chains: Vec<RawMessage>,
    /// Answer to `NFT_MSG_GETRULE`.
    pub rules: Vec<RawMessage>,
}

/// Dumps the calling thread's namespace: this family, or whatever there is. Makes nothing: neither tables nor chains.
pub fn dump(scope: Scope, families: &[Family]) -> Result<Dump> {
    let families = match families {
        [family] => header(family.number()),
        _ => header(libc::AF_UNSPEC as u8),
    };
    let get = |kind, payload: &[u8]| netlink::netfilter(kind, libc::NLM_F_DUMP as u16, payload);
    let tables = get(GETTABLE, &families).context("dump the tables of nf_tables")?;
    if tables.is_empty() {
        return Ok(Dump::default());
    }
    let chains = get(GETCHAIN, &families).context("dump the chains of nf_tables")?;
    let rules_of = |payload: &[u8]| get(GETRULE, payload).context("dump the rules of nf_tables");
    let rules = match scope {
        Scope::Everything => rules_of(&families)?,
        Scope::Chains { table, chains, ours } => {
            let mut rules = Vec::new();
            for family in [Family::V4, Family::V6] {
                for chain in chains {
                    let mut payload = header(family.number()).to_vec();
                    put_text(&mut payload, RULE_TABLE, table);
                    put_text(&mut payload, RULE_CHAIN, chain);
                    rules.extend(rules_of(&payload)?);
                }
            }
            for table in ours {
                if holds(&tables, table)? {
                    let mut payload = header(INET).to_vec();
                    put_text(&mut payload, RULE_TABLE, table);
                    rules.extend(rules_of(&payload)?);
                }
            }
            rules
        }
    };
    Ok(Dump { tables, chains, rules })
}

/// Whether one of these is the shared table of this name.
fn holds(tables: &[RawMessage], name: &str) -> Result<bool> {
    for message in tables {
        if let Some((INET, table)) = open(message, NEWTABLE)?
            && table.text(TABLE_NAME)? == name
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether rules or chains of somebody are in the tables that iptables uses. Cheap on hosts with many rules, which are
/// not read.
pub fn in_use() -> Result<bool> {
    let chains = netlink::netfilter(GETCHAIN, libc::NLM_F_DUMP as u16, &header(libc::AF_UNSPEC as u8));
    for message in chains.context("dump the chains of nf_tables")? {
        let Some((family, chain)) = open(&message, NEWCHAIN)? else { continue };
        let of_iptables = family != INET && IPTABLES_TABLES.contains(&&*chain.text(CHAIN_TABLE)?);
        if of_iptables && (chain.get(CHAIN_HOOK).is_none() || chain.number(CHAIN_USE)?.unwrap_or(0) > 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether this kernel has nf_tables.
pub fn is_there() -> Result<bool> {
    match netlink::netfilter(GETTABLE, libc::NLM_F_DUMP as u16, &header(libc::AF_UNSPEC as u8)) {
        Ok(_) => Ok(true),
        // No netfilter over netlink at all; or that, but no nf_tables behind it (nfnetlink_rcv_msg).
        Err(e) if e.kind() == Kind::Unsupported || e.errno() == Some(libc::EINVAL) => Ok(false),
        Err(e) => Err(e).context("ask for the tables of nf_tables"),
    }
}

/// Switches a dormant table on. `family` is its number (`NFPROTO_…`).
pub fn wake(family: u8, table: &str) -> Result<()> {
    let mut payload = header(family).to_vec();
    put_text(&mut payload, TABLE_NAME, table);
    put(&mut payload, TABLE_FLAGS, &0_u32.to_be_bytes());
    let switch_on = Change { kind: NEWTABLE, flags: 0, payload };
    netlink::netfilter_batch(SUBSYSTEM, &[switch_on]).with_context(|| format!("switch on table {table} of nf_tables"))
}
