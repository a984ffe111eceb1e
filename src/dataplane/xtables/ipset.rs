//! The host's probe sets: the addresses of enrolled pods, one ipset a family, each entry with its pod's uid as comment.
//!
//! Spoken to over netlink (`linux/netfilter/ipset/ip_set.h`), in the calling thread's namespace. An entry is replaced,
//! not refused, when it is there; it is removed only for the uid it carries, because the address may have passed on to
//! another pod since.

use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use crate::rules::family::Family;
use crate::rules::host::probe_set;
use crate::sys::ffi;
use crate::sys::netlink::attributes::{Attributes, HEADER_SIZE, NESTED, header, put};
use crate::sys::netlink::{self, RawMessage};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd;

/// `NFNL_SUBSYS_IPSET`.
const SUBSYSTEM: u8 = 6;
const CREATE: u16 = kind(2);
const DESTROY: u16 = kind(3);
const LIST: u16 = kind(7);
const ADD: u16 = kind(9);
const DEL: u16 = kind(10);

/// A message type: the subsystem and the command within it.
const fn kind(command: u8) -> u16 {
    u16::from_be_bytes([SUBSYSTEM, command])
}

const PROTOCOL: u16 = 1;
/// The protocol's oldest version that is still spoken everywhere.
const PROTOCOL_VERSION: u8 = 6;
const SET_NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
const REVISION: u16 = 4;
/// The first revision of `hash:ip` that knows comments (Linux 3.13).
const REVISION_WITH_COMMENTS: u8 = 2;
const FAMILY: u16 = 5;
const DATA: u16 = 7;
const ENTRIES: u16 = 8;
const ENTRY_IP: u16 = 1;
const ENTRY_COMMENT: u16 = 26;
const CREATE_FLAGS: u16 = 8;
const FLAG_WITH_COMMENT: u32 = 1 << 4;
const ADDRESS_V4: u16 = 1;
const ADDRESS_V6: u16 = 2;
/// Flag of a type (`linux/netlink.h`).
const NET_BYTE_ORDER: u16 = 1 << 14;
/// Longest comment the kernel takes, bytes (`IPSET_MAX_COMMENT_SIZE`).
const MAX_COMMENT: usize = 255;

/// `IPSET_ERR_TYPE_MISMATCH`: a set of this name has another type.
const TYPE_MISMATCH: i32 = 4102;

/// Makes the set of a family unless it is there.
pub fn create(family: Family) -> Result<()> {
    let mut request = request(family);
    put(&mut request, TYPE_NAME, b"hash:ip\0");
    put(&mut request, REVISION, &[REVISION_WITH_COMMENTS]);
    put(&mut request, FAMILY, &[family.number()]);
    let mut data = Vec::new();
    put(&mut data, CREATE_FLAGS | NET_BYTE_ORDER, &FLAG_WITH_COMMENT.to_be_bytes());
    put(&mut request, DATA | NESTED, &data);
    let name = probe_set(family);
    match send(CREATE, 0, &request) {
        Err(e) if matches!(e.errno(), Some(libc::EEXIST | TYPE_MISMATCH)) => {
            let remedy = "remove it, if nothing else uses it: ipset destroy";
            Err(e.context(format_args!("ipset {name} exists and is not a hash:ip with comments; {remedy} {name}")))
        }
        other => other.with_context(|| format!("make ipset {name} (kernel module ip_set_hash_ip)")),
    }
}

/// Enters an address for a pod, in place of whoever had it.
pub fn add(address: IpAddr, uid: &str) -> Result<()> {
    if uid.len() > MAX_COMMENT || uid.contains('\0') {
        return Err(invalid!("pod uid {uid:?} does not fit into the comment of a set entry"));
    }
    let family = Family::of(address.to_canonical());
    let mut data = entry(address);
    put(&mut data, ENTRY_COMMENT, &[uid.as_bytes(), b"\0"].concat());
    let mut request = request(family);
    put(&mut request, DATA | NESTED, &data);
    send(ADD, 0, &request).with_context(|| format!("add {address} to ipset {}", probe_set(family)))
}

/// Removes an address if its entry is this pod's; says whether it was.
pub fn remove(address: IpAddr, uid: &str) -> Result<bool> {
    let address = address.to_canonical();
    let family = Family::of(address);
    if entries(family)?.get(&address).is_none_or(|owner| owner != uid) {
        return Ok(false);
    }
    let mut request = request(family);
    put(&mut request, DATA | NESTED, &entry(address));
    send(DEL, 0, &request).with_context(|| format!("remove {address} from ipset {}", probe_set(family)))?;
    Ok(true)
}

/// Addresses and the uids they are entered for; empty when there is no such set.
pub fn entries(family: Family) -> Result<BTreeMap<IpAddr, String>> {
    let name = probe_set(family);
    match netlink::netfilter(LIST, libc::NLM_F_DUMP as u16, &request(family)) {
        Err(e) if is_none(&e) => Ok(BTreeMap::new()),
        answers => decode(&answers.with_context(|| format!("list ipset {name}"))?),
    }
}

/// Whether there is a set of a family.
pub fn is_there(family: Family) -> Result<bool> {
    match netlink::netfilter(LIST, libc::NLM_F_DUMP as u16, &request(family)) {
        Ok(_) => Ok(true),
        Err(e) if is_none(&e) => Ok(false),
        Err(e) => Err(e.context(format_args!("list ipset {}", probe_set(family)))),
    }
}

/// Removes the set of a family; says whether it was there. A set that a rule still refers to stays, and is an error.
pub fn destroy(family: Family) -> Result<bool> {
    match send(DESTROY, libc::NLM_F_EXCL, &request(family)) {
        Ok(()) => Ok(true),
        Err(e) if is_none(&e) => Ok(false),
        Err(e) => Err(e.context(format_args!("remove ipset {}", probe_set(family)))),
    }
}

/// There is no such set; or the kernel has no ipset at all (nfnetlink_rcv_msg), and so no sets.
fn is_none(e: &Error) -> bool {
    matches!(e.kind(), Kind::NotFound | Kind::Unsupported) || e.errno() == Some(libc::EINVAL)
}

/// Gives ipsets the names that belong to their numbers.
pub type SetNames<'a> = &'a dyn Fn(u16) -> Option<String>;

/// The name of the set that a rule of the calling thread's namespace refers to by this number
/// (`struct ip_set_req_get_set` in `linux/netfilter/ipset/ip_set.h`).
pub fn name_of(number: u16) -> Option<String> {
    const SO_IP_SET: i32 = 83;
    const GET_BY_NUMBER: u32 = 7;
    const NAME_AT: usize = 8;
    const SIZE: usize = NAME_AT + 32;
    let mut request = [0; SIZE];
    let (head, name) = request.split_at_mut(NAME_AT);
    head.copy_from_slice(&[GET_BY_NUMBER.to_ne_bytes(), u32::from(PROTOCOL_VERSION).to_ne_bytes()].concat());
    name.get_mut(..2)?.copy_from_slice(&number.to_ne_bytes());
    let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw).ok()?;
    ffi::getsockopt(socket.as_fd(), libc::SOL_IP, SO_IP_SET, &mut request).ok()?;
    let name = request.get(NAME_AT..)?.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Takes the number of the set out of the data of a rule's match, where it stands first (`struct xt_set_info`), and
/// returns what to compare instead.
pub fn name_set(data: &mut [u8], sets: SetNames<'_>) -> String {
    let Some(number) = data.first_chunk_mut() else { return String::new() };
    let set = u16::from_ne_bytes(std::mem::take(number));
    sets(set).unwrap_or_else(|| format!("set {set}"))
}

/// Decodes the answer to a listing.
pub fn decode(answers: &[RawMessage]) -> Result<BTreeMap<IpAddr, String>> {
    let mut all = BTreeMap::new();
    for answer in answers {
        let Some(attributes) = answer.payload.get(HEADER_SIZE..) else {
            return Err(invalid!("ipset message of {} bytes", answer.payload.len()));
        };
        for data in Attributes::parse(attributes)?.nested(ENTRIES)?.all(DATA) {
            let data = Attributes::parse(data)?;
            let address = data.nested(ENTRY_IP)?;
            let v4 = address.get(ADDRESS_V4).map(|bytes| <[u8; 4]>::try_from(bytes).map(IpAddr::from));
            let v6 = address.get(ADDRESS_V6).map(|bytes| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
            let address = v4.or(v6).context("ipset entry without an address")?;
            let address = address.map_err(|_| invalid!("ipset entry with an address of odd length"))?;
            let comment =
                if data.get(ENTRY_COMMENT).is_some() { data.text(ENTRY_COMMENT)?.into_owned() } else { String::new() };
            all.insert(address, comment);
        }
    }
    Ok(all)
}

/// What every request begins with.
fn request(family: Family) -> Vec<u8> {
    let mut request = header(family.number()).to_vec();
    put(&mut request, PROTOCOL, &[PROTOCOL_VERSION]);
    put(&mut request, SET_NAME, &[probe_set(family).as_bytes(), b"\0"].concat());
    request
}

fn entry(address: IpAddr) -> Vec<u8> {
    let (mut ip, mut data) = (Vec::new(), Vec::new());
    match address.to_canonical() {
        IpAddr::V4(v4) => put(&mut ip, ADDRESS_V4 | NET_BYTE_ORDER, &v4.octets()),
        IpAddr::V6(v6) => put(&mut ip, ADDRESS_V6 | NET_BYTE_ORDER, &v6.octets()),
    }
    put(&mut data, ENTRY_IP | NESTED, &ip);
    data
}

/// Without `NLM_F_EXCL`, what is there already or is gone already is no error, and an entry's comment is replaced.
fn send(kind: u16, flags: i32, request: &[u8]) -> Result<()> {
    netlink::netfilter(kind, flags as u16, request).map(drop).map_err(explained)
}

/// The kernel's private error numbers (`enum ipset_errno`) in words.
fn explained(e: Error) -> Error {
    let text = match e.errno() {
        Some(4097) => "the kernel speaks another version of the ipset protocol",
        Some(4098) => "the kernel does not know the set type hash:ip with comments",
        Some(4099) => "there are too many sets",
        Some(4100) => "a rule still refers to the set",
        Some(TYPE_MISMATCH) => "the set has another type",
        Some(4352) => "the set is full",
        _ => return e,
    };
    e.context(text)
}
