//! The iptables programs: which there are, what they are, and how they are run.

use super::variant::Variant;
use crate::error::{Context, Error, Result};
use crate::invalid;
use crate::rules::family::Family;
use crate::sys::exec::{self, Command};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Major, minor, patch.
type Version = (u32, u32, u32);

/// The first that waits for the lock a stated time (`--wait=SECONDS`) when restoring.
const OLDEST: Version = (1, 6, 2);
/// The first legacy iptables that takes its lock file from the environment (`XTABLES_LOCKFILE`). Before it, all
/// namespaces share the host's lock.
const OLDEST_LEGACY: Version = (1, 8, 6);

/// From start to exit of one program.
const DEADLINE: Duration = Duration::from_secs(10);
/// Shorter than [`DEADLINE`], so that a lock somebody holds is reported as such.
const LOCK_WAIT: &str = "--wait=5";

/// One installed iptables: the restore programs of both families.
#[derive(Debug, Clone)]
pub struct Programs {
    /// What it is.
    pub variant: Variant,
    /// `iptables-nft`, `iptables-legacy` or `iptables`.
    pub name: &'static str,
    /// The version that `--version` prints, such as `1.8.9`.
    pub version: String,
    v4: PathBuf,
    v6: Result<PathBuf, String>,
}

impl Programs {
    /// The names under which iptables is installed, and those of the IPv6 twins.
    pub const NAMES: [(&str, &str); 3] =
        [("iptables-nft", "ip6tables-nft"), ("iptables-legacy", "ip6tables-legacy"), ("iptables", "ip6tables")];

    /// Looks for one of [`Self::NAMES`] and asks it what it is. `dir` as in the options.
    pub fn find((v4, v6): (&'static str, &'static str), dir: Option<&Path>) -> Result<Self> {
        let restore = find(&format!("{v4}-restore"), dir)?;
        let command = Command {
            program: find(v4, dir)?,
            args: vec!["--version".into()],
            deadline: DEADLINE,
            ..Command::default()
        };
        let said = exec::run(&command)?;
        let (version, variant) = parse_version(&String::from_utf8_lossy(&said.stdout))?;
        let oldest = if variant == Variant::Legacy { OLDEST_LEGACY } else { OLDEST };
        if version < oldest {
            return Err(invalid!("version {} is too old, {} is needed", show(version), show(oldest)));
        }
        let twin = find(&format!("{v6}-restore"), dir).map_err(|e| e.to_string());
        Ok(Programs { variant, name: v4, version: show(version), v4: restore, v6: twin })
    }

    /// Marks IPv6 as not usable, and why.
    pub fn without_ipv6(mut self, why: &Error) -> Self {
        self.v6 = Err(why.to_string());
        self
    }

    /// Whether IPv6 can be programmed; the error says why not.
    pub fn ipv6(&self) -> Result<()> {
        self.path(Family::V6).map(|_| ())
    }

    fn path(&self, family: Family) -> Result<&Path> {
        match (family, &self.v6) {
            (Family::V4, _) => Ok(&self.v4),
            (Family::V6, Ok(path)) => Ok(path),
            (Family::V6, Err(why)) => Err(Error::new(format_args!("{} cannot do IPv6: {why}", self.name))),
        }
    }

    /// The command that prints what the namespace holds in which it runs.
    pub fn save(&self, family: Family) -> Result<Command> {
        let restore = self.path(family)?;
        let name = restore.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix("-restore"));
        let name = name.with_context(|| format!("{} is no restore program", restore.display()))?;
        let program = restore.with_file_name(format!("{name}-save"));
        Ok(Command { program, env: environment(), deadline: DEADLINE, ..Command::default() })
    }

    /// The command that puts `input` into the namespace in which it runs. `lock` is the path of the namespace's lock
    /// files, one for each family: their tables have nothing in common, so neither waits for the other.
    pub fn restore(&self, family: Family, input: String, lock: &Path) -> Result<Command> {
        let mut args = vec!["--noflush".into()];
        let mut env = environment();
        // The nft variant needs no lock: the kernel takes each table's input as one transaction.
        if self.variant == Variant::Legacy {
            args.push(LOCK_WAIT.into());
            env.push(("XTABLES_LOCKFILE".into(), lock_file(lock, family).into()));
        }
        let program = self.path(family)?.to_owned();
        Ok(Command { program, args, env, stdin: input.into_bytes(), deadline: DEADLINE, ..Command::default() })
    }
}

/// The lock file of a family, given the path of a namespace's lock files.
fn lock_file(lock: &Path, family: Family) -> PathBuf {
    lock.with_extension(if family == Family::V4 { "ipv4" } else { "ipv6" })
}

fn environment() -> Vec<(OsString, OsString)> {
    vec![("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into())]
}

fn find(name: &str, dir: Option<&Path>) -> Result<PathBuf> {
    let found = match dir {
        Some(dir) => Some(dir.join(name)).filter(|path| path.is_file()),
        None => exec::find_program(name),
    };
    found.with_context(|| format!("{name} is not installed"))
}

/// Reads what `--version` prints, such as `iptables v1.8.9 (nf_tables)`. Before 1.8 there was only what is now legacy.
fn parse_version(text: &str) -> Result<(Version, Variant)> {
    let bad = || invalid!("{:?} is no version of iptables", text.trim());
    let mut words = text.split_whitespace();
    let number = words.nth(1).and_then(|word| word.strip_prefix('v')).ok_or_else(bad)?;
    let mut parts = number.split('.').map(|part| part.parse::<u32>().map_err(|_| bad()));
    let mut part = || parts.next().unwrap_or(Ok(0));
    let version = (part()?, part()?, part()?);
    let variant = if words.next() == Some("(nf_tables)") { Variant::Nft } else { Variant::Legacy };
    Ok((version, variant))
}

fn show((major, minor, patch): Version) -> String {
    format!("{major}.{minor}.{patch}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let check = |text, want| assert_eq!(parse_version(text).ok(), want, "{text:?}");
        check("iptables v1.8.9 (nf_tables)\n", Some(((1, 8, 9), Variant::Nft)));
        check("iptables v1.8.10 (legacy)\n", Some(((1, 8, 10), Variant::Legacy)));
        check("iptables v1.6.2\n", Some(((1, 6, 2), Variant::Legacy)));
        check("ip6tables v1.8 (nf_tables)", Some(((1, 8, 0), Variant::Nft)));
        check("iptables v1.4.21", Some(((1, 4, 21), Variant::Legacy)));
        for text in ["", "iptables", "iptables 1.8.9", "iptables v1.x.2", "iptables v-1.2.3", "sh: not found"] {
            check(text, None);
        }
        assert!((1, 8, 10) > OLDEST_LEGACY && (1, 6, 2) >= OLDEST && (1, 4, 21) < OLDEST);
    }

    #[test]
    fn variants_by_name() {
        assert_eq!("nft".parse::<Variant>().ok(), Some(Variant::Nft));
        assert_eq!("legacy".parse::<Variant>().ok(), Some(Variant::Legacy));
        assert!("NFT".parse::<Variant>().is_err());
    }
}
