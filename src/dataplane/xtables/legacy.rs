//! Legacy tables of the calling thread's namespace, asked for by getsockopt (`linux/netfilter_ipv4/ip_tables.h`).

use super::entries::{INFO_SIZE, Layout, NAME_SIZE, decode, number};
use super::ipset;
use crate::dataplane::scope::Scope;
use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use crate::rules::family::Family;
use crate::rules::view::View;
use crate::sys::{ffi, file};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Where the entries begin in `struct ipt_get_entries`: name, size, alignment to 8.
const ENTRIES_START: usize = 40;

/// The tables of the calling thread's namespace.
pub fn look(family: Family, scope: Scope) -> Result<View> {
    let mut tables = BTreeMap::new();
    for name in names(family)? {
        if matches!(scope, Scope::Chains { table, .. } if table != name) {
            continue;
        }
        let table = read(Layout::of(family), &name).with_context(|| format!("read legacy table {name}"))?;
        tables.insert(name, decode(family, &table.info, &table.entries, &ipset::name_of)?);
    }
    Ok(View { tables })
}

/// Whether rules or chains of somebody are in any table. Cheap on hosts with many rules, which are not read.
pub fn in_use(family: Family) -> Result<bool> {
    let layout = Layout::of(family);
    for name in names(family)? {
        let info = read_info(&open(layout)?, layout, &name).with_context(|| format!("read legacy table {name}"))?;
        // A table without rules has a policy for each hook and an entry that closes it.
        if number(&info, INFO_SIZE - 8)? > number(&info, NAME_SIZE)?.count_ones() + 1 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The tables that exist. Only these may be asked for: asking for another would make it.
fn names(family: Family) -> Result<Vec<String>> {
    match file::read_limited(Path::new(Layout::of(family).names), 4096) {
        Ok(names) => Ok(String::from_utf8_lossy(&names).lines().map(str::to_owned).collect()),
        // No legacy tables in this kernel.
        Err(e) if e.kind() == Kind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

fn open(layout: &Layout) -> Result<OwnedFd> {
    let family = if layout.level == libc::IPPROTO_IP { AddressFamily::Inet } else { AddressFamily::Inet6 };
    socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw).context("open a raw socket")
}

/// `struct ipt_getinfo` of a table.
fn read_info(socket: &OwnedFd, layout: &Layout, name: &str) -> Result<Vec<u8>> {
    /// `IPT_SO_GET_INFO`, the same number for IPv6.
    const GET_INFO: i32 = 64;
    let mut info = named(name, INFO_SIZE)?;
    ffi::getsockopt(socket.as_fd(), layout.level, GET_INFO, &mut info).context("IPT_SO_GET_INFO")?;
    Ok(info)
}

/// A table as the kernel gives it out.
#[derive(Debug)]
struct RawTable {
    /// `struct ipt_getinfo`.
    info: Vec<u8>,
    /// The block of entries.
    entries: Vec<u8>,
}

fn read(layout: &Layout, name: &str) -> Result<RawTable> {
    /// `IPT_SO_GET_ENTRIES`, the same number for IPv6.
    const GET_ENTRIES: i32 = 65;
    /// How often a table that changes meanwhile is read again.
    const TRIES: usize = 20;
    /// Bytes; room for a hundred thousand rules.
    const LARGEST: usize = 32 << 20;

    let socket = open(layout)?;
    for _ in 0..TRIES {
        let info = read_info(&socket, layout, name)?;
        let size = number(&info, INFO_SIZE - 4)?;
        if size as usize > LARGEST {
            return Err(invalid!("it has {size} bytes, {LARGEST} are allowed"));
        }
        let mut buf = named(name, ENTRIES_START + size as usize)?;
        buf[NAME_SIZE..NAME_SIZE + 4].copy_from_slice(&size.to_ne_bytes());
        match ffi::getsockopt(socket.as_fd(), layout.level, GET_ENTRIES, &mut buf) {
            Ok(_) => return Ok(RawTable { info, entries: buf.split_off(ENTRIES_START) }),
            // It was changed since its size was read.
            Err(Errno::EAGAIN) => {}
            Err(e) => return Err(Error::from(e).context("IPT_SO_GET_ENTRIES")),
        }
    }
    Err(Error::of(Kind::TimedOut, format_args!("it changed {TRIES} times while it was read")))
}

/// Zeroed room for an answer, which begins with the name of the table asked about.
fn named(name: &str, size: usize) -> Result<Vec<u8>> {
    if name.len() >= NAME_SIZE || size <= NAME_SIZE {
        return Err(invalid!("legacy table {name:?}: the name is too long"));
    }
    let mut buf = vec![0; size];
    buf[..name.len()].copy_from_slice(name.as_bytes());
    Ok(buf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::netns::Netns;

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

    /// The kernel still says what was recorded; `UPDATE_FIXTURES=1` makes the recording anew.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a recording is made by the real tools")]
    fn the_recording_is_what_this_kernel_says() {
        for (family, ip, suffix) in [(Family::V4, "iptables", "ipv4"), (Family::V6, "ip6tables", "ipv6")] {
            let script = format!(
                "export XTABLES_LOCKFILE=$(mktemp)
                {ip}-legacy-restore --noflush < test-fixtures/rules/istio-1.31/plain.{suffix}
                {ip}-legacy -t nat -N FOREIGN
                {ip}-legacy -t nat -A FOREIGN -p udp -m comment --comment hello -g ISTIO_OUTPUT
                {ip}-legacy -t nat -A FOREIGN
                {ip}-legacy -t nat -I OUTPUT -p tcp -j FOREIGN"
            );
            let table = Netns::scratch().unwrap().enter(|| {
                assert!(std::process::Command::new("sh").args(["-ec", &script]).status().unwrap().success());
                read(Layout::of(family), "nat").unwrap()
            });
            let RawTable { info, entries } = table.unwrap();
            if std::env::var_os("UPDATE_FIXTURES").is_some() {
                std::fs::write(format!("test-fixtures/rules/legacy-nat.{suffix}.info"), &info).unwrap();
                std::fs::write(format!("test-fixtures/rules/legacy-nat.{suffix}.entries"), &entries).unwrap();
            }
            let (_, recorded_info, recorded) = RECORDED.into_iter().find(|(of, ..)| *of == family).unwrap();
            let [mut now, mut then] = [(&info[..], &entries[..]), (recorded_info, recorded)]
                .map(|(i, e)| decode(family, i, e, &|_| None).unwrap());
            // Revisions of matches and targets differ between versions of iptables.
            for chain in now.chains.values_mut().chain(then.chains.values_mut()) {
                chain.rules.iter_mut().for_each(|rule| rule.body.clear());
            }
            assert_eq!(now, then);
        }
    }
}
