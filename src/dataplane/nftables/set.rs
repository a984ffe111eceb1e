//! The probe sets as sets of our own table of nf_tables ([`super::tables`]): what [`crate::dataplane::xtables::ipset`] is for ipset, over
//! netlink, in the calling thread's namespace. `nft` shows an entry's pod as its comment.

use super::message::{SUBSYSTEM, kind};
use super::tables::{self, named};
use crate::error::{Context, Kind, Result};
use crate::invalid;
use crate::rules::family::Family;
use crate::rules::host::probe_set;
use crate::rules::nftables::HOST_TABLE;
use crate::sys::netlink::attributes::{Attributes, HEADER_SIZE, NESTED, put};
use crate::sys::netlink::{self, Change, RawMessage};
use std::collections::BTreeMap;
use std::net::IpAddr;

const NEWSETELEM: u16 = kind(12);
const GETSETELEM: u16 = kind(13);
const DELSETELEM: u16 = kind(14);

const ELEMENTS: u16 = 3;
const LIST_ELEMENT: u16 = 1;
const KEY: u16 = 1;
const USERDATA: u16 = 6;
const DATA_VALUE: u16 = 1;
/// In user data (as libnftnl writes it: type, length, value), a comment.
const COMMENT: u8 = 0;
/// Longest comment `nft` takes, bytes (`NFTNL_UDATA_COMMENT_MAXLEN`), the zero at the end included.
const MAX_COMMENT: usize = 128;

/// Makes the set of a family unless it is there.
pub fn create(family: Family) -> Result<()> {
    tables::make_set(HOST_TABLE, family)
}

/// Enters an address for a pod, in place of whoever had it.
pub fn add(address: IpAddr, uid: &str) -> Result<()> {
    let length = uid.len() + 1;
    let Some(length) = u8::try_from(length).ok().filter(|_| length <= MAX_COMMENT && !uid.contains('\0')) else {
        return Err(invalid!("pod uid {uid:?} does not fit into the comment of a set entry"));
    };
    let comment = [&[COMMENT, length], uid.as_bytes(), b"\0"].concat();
    let family = Family::of(address.to_canonical());
    let enter = |flags, comment| change(NEWSETELEM, libc::NLM_F_CREATE | flags, address, comment);
    // The next transaction after one that removes something waits until no processor can still see that: some 10 ms.
    // So nothing is removed where nothing has to be.
    let alone = netlink::netfilter_batch(SUBSYSTEM, &[enter(libc::NLM_F_EXCL, Some(comment.clone()))]);
    let entered = match alone {
        Err(e) if e.errno() == Some(libc::EEXIST) => {
            if entries(family)?.get(&address.to_canonical()).is_some_and(|owner| owner == uid) {
                return Ok(());
            }
            // The kernel leaves an entry that is there as it is, and refuses to remove one that is not.
            let changes = [enter(0, None), change(DELSETELEM, 0, address, None), enter(0, Some(comment))];
            netlink::netfilter_batch(SUBSYSTEM, &changes)
        }
        other => other,
    };
    entered.with_context(|| format!("add {address} to set {} of table inet {HOST_TABLE}", probe_set(family)))
}

/// Removes an address if its entry is this pod's; says whether it was.
pub fn remove(address: IpAddr, uid: &str) -> Result<bool> {
    let address = address.to_canonical();
    let family = Family::of(address);
    if entries(family)?.get(&address).is_none_or(|owner| owner != uid) {
        return Ok(false);
    }
    match netlink::netfilter_batch(SUBSYSTEM, &[change(DELSETELEM, 0, address, None)]) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == Kind::NotFound => Ok(false),
        Err(e) => {
            let set = probe_set(family);
            Err(e.context(format_args!("remove {address} from set {set} of table inet {HOST_TABLE}")))
        }
    }
}

/// Addresses and the uids they are entered for; empty when there is no such set.
pub fn entries(family: Family) -> Result<BTreeMap<IpAddr, String>> {
    let set = probe_set(family);
    match netlink::netfilter(GETSETELEM, libc::NLM_F_DUMP as u16, &named(&[HOST_TABLE, set])) {
        Err(e) if e.kind() == Kind::NotFound => Ok(BTreeMap::new()),
        answers => decode(&answers.with_context(|| format!("list set {set} of table inet {HOST_TABLE}"))?),
    }
}

/// Decodes the answer to a listing.
pub fn decode(answers: &[RawMessage]) -> Result<BTreeMap<IpAddr, String>> {
    let mut all = BTreeMap::new();
    for answer in answers {
        let Some(attributes) = answer.payload.get(HEADER_SIZE..) else {
            return Err(invalid!("nf_tables message of {} bytes", answer.payload.len()));
        };
        for element in Attributes::parse(attributes)?.nested(ELEMENTS)?.all(LIST_ELEMENT) {
            let element = Attributes::parse(element)?;
            let key = element.nested(KEY)?;
            let bytes = key.get(DATA_VALUE).context("set entry without an address")?;
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
            let address = address.map_err(|_| invalid!("set entry with an address of odd length"))?;
            all.insert(address, comment(element.get(USERDATA).unwrap_or_default()));
        }
    }
    Ok(all)
}

/// The comment in user data; empty when there is none.
fn comment(mut data: &[u8]) -> String {
    while let [kind, length, rest @ ..] = data {
        let (value, next) = rest.split_at_checked((*length).into()).unwrap_or((rest, &[]));
        if *kind == COMMENT {
            return String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned();
        }
        data = next;
    }
    String::new()
}

fn change(kind: u16, flags: i32, address: IpAddr, comment: Option<Vec<u8>>) -> Change {
    let address = address.to_canonical();
    let (mut value, mut element, mut list) = (Vec::new(), Vec::new(), Vec::new());
    match address {
        IpAddr::V4(v4) => put(&mut value, DATA_VALUE, &v4.octets()),
        IpAddr::V6(v6) => put(&mut value, DATA_VALUE, &v6.octets()),
    }
    put(&mut element, KEY | NESTED, &value);
    if let Some(comment) = comment {
        put(&mut element, USERDATA, &comment);
    }
    put(&mut list, LIST_ELEMENT | NESTED, &element);
    let mut payload = named(&[HOST_TABLE, probe_set(Family::of(address))]);
    put(&mut payload, ELEMENTS | NESTED, &list);
    Change { kind, flags: flags as u16, payload }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_found_in_any_user_data() {
        let check = |data: &[u8], want: &str| assert_eq!(comment(data), want, "{data:?}");
        check(b"\x00\x06uid-1\x00", "uid-1");
        check(b"\x01\x02ab\x00\x02x\x00", "x");
        check(b"\x00\x09uid", "uid");
        for data in [&b""[..], b"\x00", b"\x01\x7f", b"\x01\x00", b"\x00\x00"] {
            check(data, "");
        }
    }
}
