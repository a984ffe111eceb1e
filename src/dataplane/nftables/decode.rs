//! The dump of a namespace's nf_tables, decoded into views of the tables that iptables uses and of those that are ours
//! ([`super::tables`]). Pure. Formats: `linux/netfilter/nf_tables.h`.

use super::dump::Dump;
use super::message::{
    CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TABLE, CHAIN_TYPE, HOOK_NUMBER, HOOK_PRIORITY, INET, NEWCHAIN, NEWRULE,
    NEWTABLE, RULE_CHAIN, RULE_COMPAT, RULE_EXPRESSIONS, RULE_TABLE, RULE_USERDATA, TABLE_F_DORMANT, TABLE_FLAGS,
    TABLE_NAME, open,
};
use crate::dataplane::xtables::ipset::{SetNames, name_set};
use crate::error::{Context, Error, Result};
use crate::rules::family::Family;
use crate::rules::view::{Attachment, RuleView, TableView, View};
use crate::sys::netlink::attributes::{ATTRIBUTE_HEADER, Attributes, put};
use std::borrow::Cow;
use std::collections::BTreeMap;

const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const MATCH_NAME: u16 = 1;
const MATCH_REVISION: u16 = 2;
const MATCH_INFO: u16 = 3;
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
/// `NFT_JUMP`.
const VERDICT_JUMP: i32 = -3;
/// `NFT_GOTO`.
const VERDICT_GOTO: i32 = -4;
/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;

/// The tables of IPv4 and IPv6.
pub type Views = BTreeMap<Family, View>;

/// Views by the numbers of their families (`NFPROTO_…`).
type Numbered = Vec<(u8, View)>;

/// Decodes a dump. Families that iptables does not use are left out. `sets` gives ipsets their names.
pub fn decode(dump: &Dump, sets: SetNames<'_>) -> Result<Views> {
    let families = [Family::V4, Family::V6];
    let views = read(dump, sets, &families.map(Family::number))?;
    Ok(views.into_iter().filter_map(|(number, view)| Some((Family::numbered(number)?, view))).collect())
}

/// Decodes the tables of a dump that IPv4 and IPv6 share: those that have these names, and the others.
pub fn decode_shared(dump: &Dump, names: &[&str]) -> Result<(View, View)> {
    let view = read(dump, &|_| None, &[INET])?.pop().map(|(_, view)| view).unwrap_or_default();
    let (tables, others) = view.tables.into_iter().partition(|(name, _)| names.contains(&name.as_str()));
    Ok((View { tables }, View { tables: others }))
}

/// Decodes the tables of these families.
fn read(dump: &Dump, sets: SetNames<'_>, families: &[u8]) -> Result<Numbered> {
    let mut views = Numbered::new();
    let of = |message, kind| Ok::<_, Error>(open(message, kind)?.filter(|(family, _)| families.contains(family)));
    for message in &dump.tables {
        let Some((family, attributes)) = of(message, NEWTABLE)? else { continue };
        let table = table(&mut views, family, attributes, TABLE_NAME)?;
        table.dormant = attributes.number(TABLE_FLAGS)?.unwrap_or(0) & TABLE_F_DORMANT != 0;
    }
    for message in &dump.chains {
        let Some((family, attributes)) = of(message, NEWCHAIN)? else { continue };
        let table = table(&mut views, family, attributes, CHAIN_TABLE)?;
        let chain = table.chains.entry(attributes.text(CHAIN_NAME)?.into_owned()).or_default();
        chain.attached = attachment(family, attributes)?;
    }
    for message in &dump.rules {
        let Some((family, attributes)) = of(message, NEWRULE)? else { continue };
        let table = table(&mut views, family, attributes, RULE_TABLE)?;
        let chain = table.chains.entry(attributes.text(RULE_CHAIN)?.into_owned()).or_default();
        chain.rules.push(rule(attributes, sets)?);
    }
    Ok(views)
}

fn table<'v>(views: &'v mut Numbered, family: u8, attributes: Attributes<'_>, name: u16) -> Result<&'v mut TableView> {
    let at = views.iter().position(|(number, _)| *number == family).unwrap_or(views.len());
    if at == views.len() {
        views.push((family, View::default()));
    }
    let (_, view) = views.get_mut(at).context("no view of a family that was just put there")?;
    Ok(view.tables.entry(attributes.text(name)?.into_owned()).or_default())
}

fn attachment(family: u8, chain: Attributes<'_>) -> Result<Option<Attachment>> {
    let Some(hook) = chain.get(CHAIN_HOOK) else { return Ok(None) };
    let hook = Attributes::parse(hook)?;
    let policy = chain.number(CHAIN_POLICY)?;
    Ok(Some(Attachment {
        hook: hook.number(HOOK_NUMBER)?.context("base chain of nf_tables without hook number")?,
        priority: hook.number(HOOK_PRIORITY)?.context("base chain of nf_tables without priority")?.cast_signed(),
        kind: chain.text(CHAIN_TYPE)?.into_owned(),
        accepts: (family == INET).then_some(policy == Some(ACCEPT)),
    }))
}

fn rule(attributes: Attributes<'_>, sets: SetNames<'_>) -> Result<RuleView> {
    let list = attributes.nested(RULE_EXPRESSIONS)?;
    let mut body = Vec::with_capacity(attributes.get(RULE_EXPRESSIONS).map_or(0, <[u8]>::len) + 2 * ATTRIBUTE_HEADER);
    for kind in [RULE_COMPAT, RULE_USERDATA] {
        put(&mut body, kind, attributes.get(kind).unwrap_or_default());
    }
    let bare = body.len() == 2 * ATTRIBUTE_HEADER;
    let mut target = None;
    let mut expressions = 0;
    for element in list.all(LIST_ELEMENT) {
        let expression = Attributes::parse(element)?;
        let name = expression.text(EXPRESSION_NAME)?;
        if name == "counter" {
            continue;
        }
        expressions += 1;
        let data = expression.get(EXPRESSION_DATA).unwrap_or_default();
        if name == "immediate" {
            target = jump(data)?.or(target);
        }
        put(&mut body, EXPRESSION_NAME, name.as_bytes());
        put(&mut body, EXPRESSION_DATA, &if name == "match" { named_sets(data, sets)? } else { data.into() });
    }
    let plain = bare && expressions == 1 && matches!(target, Some((VERDICT_JUMP, _)));
    Ok(RuleView { jump: target.map(|(_, chain)| chain), plain, body })
}

/// The data of a match of x_tables; the number of an ipset, which differs between namespaces, replaced by its name.
fn named_sets<'a>(data: &'a [u8], sets: SetNames<'_>) -> Result<Cow<'a, [u8]>> {
    let attributes = Attributes::parse(data)?;
    if attributes.text(MATCH_NAME)? != "set" {
        return Ok(data.into());
    }
    let mut info = attributes.get(MATCH_INFO).unwrap_or_default().to_vec();
    let name = name_set(&mut info, sets);
    let mut named = Vec::new();
    for (kind, value) in [(MATCH_NAME, name.as_bytes()), (MATCH_INFO, &info)] {
        put(&mut named, kind, value);
    }
    put(&mut named, MATCH_REVISION, attributes.get(MATCH_REVISION).unwrap_or_default());
    Ok(named.into())
}

/// Verdict and chain of an `immediate` expression that leads to another chain.
fn jump(immediate: &[u8]) -> Result<Option<(i32, String)>> {
    let verdict = Attributes::parse(immediate)?.nested(IMMEDIATE_DATA)?.nested(DATA_VERDICT)?;
    let code = verdict.number(VERDICT_CODE)?.unwrap_or(0).cast_signed();
    if !matches!(code, VERDICT_JUMP | VERDICT_GOTO) {
        return Ok(None);
    }
    Ok(Some((code, verdict.text(VERDICT_CHAIN)?.into_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::nftables::dump::dump;
    use crate::dataplane::scope::Scope;
    use crate::sys::netlink::RawMessage;
    use crate::sys::netns::Netns;
    use std::fmt::Write as _;

    /// A namespace with a plain pod's rules in both families, beside a chain of somebody else, IPv6's mangle table
    /// switched off. One message a line: its type, then its payload, in hexadecimal.
    const RECORDED: &str = include_str!("../../../test-fixtures/rules/nft-dump.hex");

    fn recorded() -> Dump {
        let mut dump = Dump::default();
        for line in RECORDED.lines() {
            let (kind, payload) = line.split_once(' ').unwrap();
            let bytes = payload.as_bytes().chunks(2);
            let payload = bytes.map(|b| u8::from_str_radix(std::str::from_utf8(b).unwrap(), 16).unwrap()).collect();
            let message = RawMessage { kind: u16::from_str_radix(kind, 16).unwrap(), payload };
            match message.kind {
                NEWTABLE => dump.tables.push(message),
                NEWCHAIN => dump.chains.push(message),
                _ => dump.rules.push(message),
            }
        }
        dump
    }

    /// The kernel still says what was recorded; `UPDATE_FIXTURES=1` makes the recording anew.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a recording is made by the real tools")]
    fn the_recording_is_what_this_kernel_says() {
        let script = "
            cd test-fixtures/rules/istio-1.31
            iptables-nft-restore --noflush < plain.ipv4
            ip6tables-nft-restore --noflush < plain.ipv6
            iptables-nft -t nat -N FOREIGN
            iptables-nft -t nat -A FOREIGN -p udp -m comment --comment hello -g ISTIO_OUTPUT
            iptables-nft -t nat -I OUTPUT -p tcp -j FOREIGN
            nft add table ip6 mangle '{ flags dormant; }'
            nft add table inet other";
        let dump = Netns::scratch().unwrap().enter(|| {
            assert!(std::process::Command::new("sh").args(["-ec", script]).status().unwrap().success());
            dump(Scope::Everything, &[]).unwrap()
        });
        let dump = dump.unwrap();
        let (mut now, mut then) = (decode(&dump, &|_| None).unwrap(), decode(&recorded(), &|_| None).unwrap());
        // How a match is expressed differs between versions of iptables.
        let tables = now.values_mut().chain(then.values_mut()).flat_map(|view| view.tables.values_mut());
        for chain in tables.flat_map(|table| table.chains.values_mut()) {
            chain.rules.iter_mut().for_each(|rule| rule.body.clear());
        }
        let mut text = String::new();
        let Dump { tables, chains, rules } = dump;
        for message in tables.into_iter().chain(chains).chain(rules) {
            let _ = write!(text, "{:04x} ", message.kind);
            for byte in message.payload {
                let _ = write!(text, "{byte:02x}");
            }
            text.push('\n');
        }
        if std::env::var_os("UPDATE_FIXTURES").is_some() {
            std::fs::write("test-fixtures/rules/nft-dump.hex", text).unwrap();
        }
        assert_eq!(now, then);
    }

    #[test]
    fn a_dump_is_decoded() {
        let views = decode(&recorded(), &|_| None).unwrap();
        let tables = |family| views[&family].tables.keys().cloned().collect::<Vec<_>>();
        assert_eq!(tables(Family::V4), ["mangle", "nat"]);
        assert_eq!(tables(Family::V6), ["mangle", "nat"]);
        assert!(!views[&Family::V4].tables["mangle"].dormant);
        assert!(views[&Family::V6].tables["mangle"].dormant);

        let nat = &views[&Family::V4].tables["nat"];
        let counts: Vec<_> = nat.chains.iter().map(|(name, chain)| (name.as_str(), chain.rules.len())).collect();
        assert_eq!(counts, [("FOREIGN", 1), ("ISTIO_OUTPUT", 4), ("ISTIO_PRERT", 2), ("OUTPUT", 2), ("PREROUTING", 1)]);
        let output = nat.chains["OUTPUT"].attached.clone();
        assert_eq!(output, Some(Attachment { hook: 3, priority: -100, kind: "nat".into(), accepts: None }));
        assert_eq!(nat.chains["ISTIO_OUTPUT"].attached, None);
        let jumps = |chain: &str| -> Vec<_> { nat.rules(chain).iter().map(|r| (r.jump.as_deref(), r.plain)).collect() };
        assert_eq!(jumps("OUTPUT"), [(Some("FOREIGN"), false), (Some("ISTIO_OUTPUT"), true)]);
        assert_eq!(jumps("FOREIGN"), [(Some("ISTIO_OUTPUT"), false)]);
        assert_eq!(jumps("ISTIO_PRERT"), [(None, false), (None, false)]);
        let mangle = &views[&Family::V4].tables["mangle"];
        assert_eq!(mangle.chains["OUTPUT"].attached.as_ref().unwrap().kind, "route");
    }

    #[test]
    fn cut_or_changed_anywhere_it_is_refused_or_decoded_but_never_more() {
        let whole = recorded();
        let parts: [fn(&mut Dump) -> &mut Vec<RawMessage>; 3] =
            [|dump| &mut dump.tables, |dump| &mut dump.chains, |dump| &mut dump.rules];
        for part in parts {
            let mut dump = Dump::default();
            for message in part(&mut recorded()).drain(..) {
                for end in 0..message.payload.len() {
                    let payload = message.payload[..end].to_vec();
                    *part(&mut dump) = vec![RawMessage { payload, ..message }];
                    let _ = decode(&dump, &|_| None);
                    for value in [0, 1, 0x7f, 0xff] {
                        let mut payload = message.payload.clone();
                        payload[end] = value;
                        *part(&mut dump) = vec![RawMessage { payload, ..message }];
                        let _ = decode(&dump, &|_| None);
                    }
                }
            }
        }
        // A message that ends within its header or an attribute is refused.
        for end in [0, 3, 5, 7, 9] {
            let mut dump = Dump::default();
            let payload = whole.rules[0].payload[..end].to_vec();
            dump.rules.push(RawMessage { kind: NEWRULE, payload });
            assert!(decode(&dump, &|_| None).is_err(), "cut to {end}");
        }
    }
}
