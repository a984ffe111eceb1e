//! The kernel's matches and targets of x_tables that rules of ours name, each a module of its own.
//!
//! The kernel is asked as iptables asks it, which loads a module that is there: over nf_tables' compatibility layer
//! (`NFNL_MSG_COMPAT_GET` in `linux/netfilter/nf_tables_compat.h`), else by `IPT_SO_GET_REVISION_…`
//! (`struct xt_get_revision` in `linux/netfilter/x_tables.h`).

use crate::error::Result;
use crate::rules::family::Family;
use crate::sys::ffi;
use crate::sys::netlink;
use crate::sys::netlink::attributes::{header, put};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use std::os::fd::AsFd;

/// Match or target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Match,
    Target,
}

/// Whether no mesh works without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing is redirected without it.
    Always,
    /// Pods of the ambient mesh cannot be enrolled, or cannot be probed.
    Ambient,
    /// Only for what [`Extension::used_for`] says.
    Sometimes,
}

/// An extension of x_tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension {
    /// The module it comes in.
    pub module: &'static str,
    name: &'static str,
    role: Role,
    /// Who needs it.
    pub need: Need,
    /// What it is for.
    pub used_for: &'static str,
}

const fn ext(module: &'static str, name: &'static str, role: Role, need: Need, used_for: &'static str) -> Extension {
    Extension { module, name, role, need, used_for }
}

/// All that are used.
pub const EXTENSIONS: [Extension; 11] = [
    ext("xt_mark", "mark", Role::Match, Need::Ambient, "telling ztunnel's packets"),
    ext("xt_connmark", "connmark", Role::Match, Need::Ambient, "telling connections that ztunnel opened"),
    ext("xt_connmark", "CONNMARK", Role::Target, Need::Ambient, "marking connections that ztunnel opened"),
    ext("xt_REDIRECT", "REDIRECT", Role::Target, Need::Always, "redirecting traffic"),
    ext("xt_owner", "owner", Role::Match, Need::Always, "the kubelet's probes, and sidecars"),
    ext("xt_set", "set", Role::Match, Need::Ambient, "the kubelet's probes"),
    ext("xt_nat", "SNAT", Role::Target, Need::Ambient, "the kubelet's probes"),
    ext("xt_conntrack", "conntrack", Role::Match, Need::Sometimes, "sidecars with TPROXY or INVALID_DROP"),
    ext("xt_TPROXY", "TPROXY", Role::Target, Need::Sometimes, "sidecars with TPROXY"),
    ext("xt_multiport", "multiport", Role::Match, Need::Sometimes, "sidecars with DNS capture"),
    ext("xt_CT", "CT", Role::Target, Need::Sometimes, "DNS capture"),
];

/// Whether the kernel has an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It has, or could load it.
    There,
    /// It has not.
    Missing,
    /// It does not say, and why.
    Unknown(String),
}

impl Extension {
    /// Asks the kernel.
    pub fn presence(&self) -> Presence {
        match read(&self.ask_nft()) {
            // Without the compatibility layer there may still be the other.
            Presence::Unknown(_) => read(&self.ask_legacy()),
            presence => presence,
        }
    }

    fn ask_nft(&self) -> Result<()> {
        /// `NFNL_SUBSYS_NFT_COMPAT` and `NFNL_MSG_COMPAT_GET`.
        const GET: u16 = 11 << 8;
        const NAME: u16 = 1;
        const REVISION: u16 = 2;
        const TYPE: u16 = 3;
        let mut request = header(Family::V4.number()).to_vec();
        put(&mut request, NAME, &[self.name.as_bytes(), b"\0"].concat());
        put(&mut request, REVISION, &0_u32.to_be_bytes());
        put(&mut request, TYPE, &u32::from(self.role == Role::Target).to_be_bytes());
        netlink::netfilter(GET, 0, &request).map(drop)
    }

    fn ask_legacy(&self) -> Result<()> {
        const GET_REVISION_MATCH: i32 = 66;
        const GET_REVISION_TARGET: i32 = 67;
        /// The name and, last, the revision.
        const SIZE: usize = 30;
        let option = if self.role == Role::Match { GET_REVISION_MATCH } else { GET_REVISION_TARGET };
        let mut request = [0; SIZE];
        for (to, from) in request.iter_mut().zip(self.name.bytes()) {
            *to = from;
        }
        let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
        ffi::getsockopt(socket.as_fd(), libc::IPPROTO_IP, option, &mut request).map(drop).map_err(Errno::into)
    }
}

fn read(answer: &Result<()>) -> Presence {
    match answer {
        Ok(()) => Presence::There,
        // Of another revision than the one that was asked for.
        Err(e) if e.errno() == Some(libc::EPROTONOSUPPORT) => Presence::There,
        Err(e) if e.errno() == Some(libc::ENOENT) => Presence::Missing,
        Err(e) => Presence::Unknown(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_both_ways() {
        for extension in EXTENSIONS {
            assert_eq!(extension.presence(), Presence::There, "{extension:?}");
            assert_eq!(read(&extension.ask_legacy()), Presence::There, "{extension:?}");
        }
        let made_up = ext("xt_none", "no-such-match", Role::Match, Need::Always, "nothing");
        assert_eq!(made_up.presence(), Presence::Missing);
        assert_eq!(read(&made_up.ask_legacy()), Presence::Missing);
    }
}
