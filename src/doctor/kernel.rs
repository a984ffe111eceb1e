//! What the kernel has: modules, IPv6, room for inotify.

use super::finding::Finding;
use super::options::Options;
use crate::dataplane::xtables::extension::{EXTENSIONS, Extension, Need, Presence};
use crate::dataplane::xtables::ipset;
use crate::error::Result;
use crate::rules::family::Family;
use crate::sys::netns::Netns;
use crate::sys::{file, watch};
use std::path::Path;

#[derive(Debug)]
pub(super) struct Facts {
    extensions: Vec<(Extension, Presence)>,
    /// A set as the host gets it could be made, or why not.
    set: Result<()>,
    /// What the kernel says of IPv6: `None` when it has none, else whether it is switched off.
    ipv6_off: Option<bool>,
    /// An inotify instance could be made, or why not.
    inotify: Result<(), String>,
    /// `fs.inotify.max_user_instances` and `max_user_watches`.
    limits: [Option<u64>; 2],
}

impl Facts {
    pub(super) fn gather(options: &Options) -> Self {
        let iptables = !options.native_nftables;
        let set = || Netns::scratch()?.enter(|| ipset::create(Family::V4))?;
        Facts {
            extensions: if iptables { EXTENSIONS.map(|ext| (ext, ext.presence())).to_vec() } else { Vec::new() },
            set: if iptables { set() } else { Ok(()) },
            ipv6_off: number("/proc/sys/net/ipv6/conf/all/disable_ipv6").map(|off| off != 0),
            inotify: watch::inotify_works().map_err(|e| e.to_string()),
            limits: ["max_user_instances", "max_user_watches"]
                .map(|name| number(&format!("/proc/sys/fs/inotify/{name}"))),
        }
    }

    pub(super) fn judge(&self, options: &Options) -> Vec<Finding> {
        let mut findings = self.extensions(options);
        match &self.set {
            Ok(()) if options.native_nftables => {}
            Ok(()) => findings.push(Finding::ok("ip_set", &"sets of type hash:ip with comments can be made")),
            Err(e) => {
                let remedy = match e.errno() {
                    Some(libc::EPERM | libc::EACCES) => "run doctor as root, with CAP_SYS_ADMIN and CAP_NET_ADMIN",
                    _ => "load it on the host (modprobe ip_set_hash_ip)",
                };
                let found = if options.ambient { Finding::fail } else { Finding::warn };
                findings.push(found("ip_set", e, &remedy));
            }
        }
        findings.push(match (self.ipv6_off, options.ipv6) {
            (Some(false), true) => Finding::ok("IPv6", &"on, and programmed"),
            (Some(false), false) => Finding::warn(
                "IPv6",
                &"the kernel has it, and pods' IPv6 traffic is not redirected",
                &"set --ambient-ipv6 unless no pod has an IPv6 address",
            ),
            (_, true) => Finding::warn("IPv6", &"asked for, and the kernel has none", &"unset --ambient-ipv6"),
            (_, false) => Finding::ok("IPv6", &"off"),
        });
        let [instances, watches] = self.limits.map(|limit| limit.map_or("unknown".to_owned(), |n| n.to_string()));
        let limits = format!("at most {instances} instances and {watches} watches a user");
        findings.push(match &self.inotify {
            Ok(()) => Finding::ok("inotify", &limits),
            Err(e) => Finding::warn(
                "inotify",
                &format_args!("{e}; {limits}: the agent looks every 5 s instead"),
                &"raise fs.inotify.max_user_instances on the host",
            ),
        });
        findings
    }

    fn extensions(&self, options: &Options) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut there: Vec<&str> = Vec::new();
        let mut unknown = None;
        for (Extension { module, need, used_for, .. }, presence) in &self.extensions {
            let missing = format!("{module} is missing, needed for {used_for}");
            let remedy = format!("load it on the host (modprobe {module}), or use a kernel that has it");
            match (presence, need) {
                (Presence::There, _) if !there.contains(module) => there.push(module),
                (Presence::There, _) => {}
                (Presence::Missing, need) => {
                    let needed = *need == Need::Always || *need == Need::Ambient && options.ambient;
                    let found = if needed { Finding::fail } else { Finding::warn };
                    findings.push(found("kernel modules", &missing, &remedy));
                }
                (Presence::Unknown(why), _) => unknown = Some(why),
            }
        }
        if let Some(why) = unknown {
            let remedy = "run doctor as root, with CAP_NET_ADMIN";
            findings.push(Finding::warn("kernel modules", &format_args!("the kernel does not tell: {why}"), &remedy));
        }
        if !there.is_empty() {
            findings.insert(0, Finding::ok("kernel modules", &there.join(", ")));
        }
        findings
    }
}

fn number(path: &str) -> Option<u64> {
    let text = file::read_limited(Path::new(path), 64).ok()?;
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Grade;
    use crate::doctor::options::options;
    use crate::error::Error;
    use nix::errno::Errno;

    fn facts(missing: &str) -> Facts {
        let presence = |ext: &Extension| if ext.module == missing { Presence::Missing } else { Presence::There };
        Facts {
            extensions: EXTENSIONS.iter().map(|ext| (*ext, presence(ext))).collect(),
            set: Ok(()),
            ipv6_off: Some(false),
            inotify: Ok(()),
            limits: [Some(128), None],
        }
    }

    fn grades(facts: &Facts, options: &Options) -> Vec<Grade> {
        facts.judge(options).into_iter().map(|finding| finding.result).collect()
    }

    #[test]
    fn a_missing_module_is_named_with_what_needs_it() {
        use Grade::{Fail, Ok, Warn};
        let ambient = options(&["--ambient-enabled", "--ambient-ipv6"]);
        assert_eq!(grades(&facts(""), &ambient), [Ok, Ok, Ok, Ok]);
        for (module, in_ambient, in_sidecar) in
            [("xt_REDIRECT", Fail, Fail), ("xt_connmark", Fail, Warn), ("xt_TPROXY", Warn, Warn)]
        {
            let found = facts(module).judge(&ambient);
            assert_eq!(found[1].result, in_ambient, "{module}");
            let text = format!("{} {:?}", found[1].finding, found[1].remedy);
            assert!(text.contains(&format!("{module} is missing, needed for ")), "{text}");
            assert!(text.contains(&format!("modprobe {module}")), "{text}");
            assert_eq!(facts(module).judge(&options(&["--ambient-ipv6"]))[1].result, in_sidecar, "{module}");
        }
    }

    #[test]
    fn ipv6_inotify_and_sets() {
        use Grade::{Fail, Ok, Warn};
        let check = |change: fn(&mut Facts), flags: &[&str], want: [Grade; 4]| {
            let mut facts = facts("");
            change(&mut facts);
            assert_eq!(grades(&facts, &options(flags)), want, "{facts:?}");
        };
        check(|_| {}, &[], [Ok, Ok, Warn, Ok]);
        check(|facts| facts.ipv6_off = None, &[], [Ok, Ok, Ok, Ok]);
        check(|facts| facts.ipv6_off = Some(true), &["--ambient-ipv6"], [Ok, Ok, Warn, Ok]);
        check(|facts| facts.inotify = Err("EMFILE".to_owned()), &["--ambient-ipv6"], [Ok, Ok, Ok, Warn]);
        let no_set = |facts: &mut Facts| facts.set = Err(Error::new("no module"));
        check(no_set, &["--ambient-ipv6"], [Ok, Warn, Ok, Ok]);
        check(no_set, &["--ambient-ipv6", "--ambient-enabled"], [Ok, Fail, Ok, Ok]);
        let mut facts = facts("");
        for (error, remedy) in [
            (Error::new("no module"), "load it on the host (modprobe ip_set_hash_ip)"),
            (Error::from(Errno::EPERM), "run doctor as root, with CAP_SYS_ADMIN and CAP_NET_ADMIN"),
        ] {
            facts.set = Err(error);
            assert_eq!(facts.judge(&options(&[]))[1].remedy.as_deref(), Some(remedy));
        }
    }
}
