//! Network namespaces: an open descriptor with its identity, and the one way to run code inside one.
//!
//! A namespace is entered on a thread that is thrown away afterwards: there is nothing to restore and nothing can
//! leak; children spawned inside inherit it. Only the process's own needs no such thread.

use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use crate::sys::clock;
use crate::sys::ffi;
use crate::sys::thread::{self, ThreadNetns};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::fstat;
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fs::{File, TryLockError};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Identity of a namespace: device and inode of its nsfs file. An inode is reused as soon as nobody holds a
/// descriptor, so equality proves something only while one side is held open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetnsId {
    /// Device of nsfs.
    pub dev: u64,
    /// Inode, as in `net:[4026531840]`.
    pub ino: u64,
}

thread_local! {
    /// The namespace that the calling thread has gone to.
    static HERE: Cell<Option<NetnsId>> = const { Cell::new(None) };
}

/// What tells a namespace from every other one of this node, also from those that have its inode later: to be written
/// down, where [`NetnsId`] is for what is held open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsIdentity {
    /// Device of nsfs.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// The number that the kernel gives out once before it is started again (`SO_NETNS_COOKIE`, since Linux 5.14).
    pub cookie: Option<u64>,
}

impl NetnsIdentity {
    /// What of it is known of every open namespace.
    pub fn id(&self) -> NetnsId {
        NetnsId { dev: self.dev, ino: self.ino }
    }
}

/// The user namespace to which a network namespace belongs: whoever is root there is root of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The one this process is in.
    Own,
    /// One that was made in ours.
    Child {
        /// The user id of whoever made it, as ours numbers users; 65534 for one that ours has no number for.
        maker: u32,
    },
    /// One further down.
    Deeper,
    /// Neither ours nor below it.
    Stranger,
}

/// An open network namespace. Holding it keeps the namespace alive.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
    id: NetnsId,
}

impl Netns {
    /// Opens a namespace file (`/proc/PID/ns/net`, a bind mount). Fails with `Invalid` when it is no network namespace.
    pub fn open(path: &Path) -> Result<Self> {
        // Not blocking: whoever names the path may have put a FIFO there.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .with_context(|| format!("open {}", path.display()))?;
        Self::from_fd(file.into()).with_context(|| path.display().to_string())
    }

    /// Takes over a received descriptor after checking with `NS_GET_NSTYPE` that it is a network namespace.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        if fstatfs(&fd).context("fstatfs of a namespace")?.filesystem_type() != NSFS_MAGIC {
            return Err(invalid!("not a namespace file"));
        }
        if ffi::ns_type(fd.as_fd()).context("NS_GET_NSTYPE")? != libc::CLONE_NEWNET {
            return Err(invalid!("a namespace file, but not of a network namespace"));
        }
        let stat = fstat(&fd).context("fstat of a namespace")?;
        Ok(Netns { fd, id: NetnsId { dev: stat.st_dev, ino: stat.st_ino } })
    }

    /// The namespace this process runs in.
    pub fn own() -> Result<Self> {
        Self::open(Path::new("/proc/self/ns/net"))
    }

    /// A new, empty namespace that lives as long as the value (loopback down).
    pub fn scratch() -> Result<Self> {
        thread::run_scoped("netns-new", || {
            unshare(CloneFlags::CLONE_NEWNET).context("make a network namespace (CAP_SYS_ADMIN is needed)")?;
            Self::open(Path::new("/proc/thread-self/ns/net"))
        })?
    }

    /// Keeps others, of this process or another, from working in the namespace while the value lives. Taken by everybody
    /// who changes something there; a lock on the namespace itself is known to all, whatever directories they see.
    /// Whoever lives in the namespace can take it, too: after `patience` one goes on without (`None`).
    pub fn reserve(&self, patience: Duration) -> Result<Option<File>> {
        /// Between two tries: there is no wait with a time limit.
        const PAUSE: Duration = Duration::from_millis(2);
        // The lock belongs to the opening, and ours may be shared.
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let own = File::open(&path).with_context(|| format!("open {path}"))?;
        let deadline = clock::now() + patience;
        loop {
            match own.try_lock() {
                Ok(()) => return Ok(Some(own)),
                Err(TryLockError::WouldBlock) if clock::until(deadline).is_zero() => return Ok(None),
                Err(TryLockError::WouldBlock) => clock::sleep(PAUSE),
                Err(TryLockError::Error(e)) => return Err(e).context("lock a network namespace"),
            }
        }
    }

    /// Its identity.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Its identity, to be written down.
    pub fn identity(&self) -> Result<NetnsIdentity> {
        let NetnsId { dev, ino } = self.id;
        Ok(NetnsIdentity { dev, ino, cookie: self.enter(cookie)?? })
    }

    /// A second descriptor of the same namespace.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = self.fd.try_clone().context("duplicate a namespace's descriptor")?;
        Ok(Netns { fd, id: self.id })
    }

    /// The user namespace to which it belongs, as seen from ours.
    pub fn owner(&self) -> Result<Owner> {
        let user_ns = match ffi::ns_user(self.fd.as_fd()) {
            Ok(user_ns) => user_ns,
            Err(Errno::EPERM) => return Ok(Owner::Stranger),
            Err(e) => return Err(e).context("NS_GET_USERNS"),
        };
        if is_own_user_ns(&user_ns)? {
            return Ok(Owner::Own);
        }
        let parent = ffi::ns_parent(user_ns.as_fd()).context("NS_GET_PARENT")?;
        if !is_own_user_ns(&parent)? {
            return Ok(Owner::Deeper);
        }
        Ok(Owner::Child { maker: ffi::ns_owner_uid(user_ns.as_fd()).context("NS_GET_OWNER_UID")? })
    }

    /// Runs `f` inside and gives back what it returns: on a thread of its own; on the calling one if that is there
    /// already, or ends after its work anyway ([`thread::spawn_for_one`]) and has not gone elsewhere. Sockets opened inside keep the namespace
    /// alive: close them inside.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        match ThreadNetns::get() {
            ThreadNetns::Home | ThreadNetns::Leaving if self.is_own() => Ok(f()),
            ThreadNetns::Leaving => self.go_and(f),
            ThreadNetns::Away if HERE.get() == Some(self.id) => Ok(f()),
            ThreadNetns::Home | ThreadNetns::Away => thread::run_scoped("netns", || self.go_and(f))?,
        }
    }

    fn go_and<T>(&self, f: impl FnOnce() -> T) -> Result<T> {
        set(self.fd.as_fd())?;
        ThreadNetns::Away.set();
        HERE.set(Some(self.id));
        Ok(f())
    }

    /// Whether it is the process's own, which is held by its main thread.
    fn is_own(&self) -> bool {
        static OWN: OnceLock<Option<NetnsId>> = OnceLock::new();
        *OWN.get_or_init(|| Self::own().ok().map(|own| own.id)) == Some(self.id)
    }
}

/// The cookie of the calling thread's namespace, where the kernel has one.
fn cookie() -> Result<Option<u64>> {
    let kind = (AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC);
    let socket = socket(kind.0, kind.1, kind.2, None).context("make a socket to ask for the namespace's cookie")?;
    let mut value = [0; 8];
    match ffi::getsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut value) {
        Ok(8) => Ok(Some(u64::from_ne_bytes(value))),
        Ok(_) | Err(Errno::ENOPROTOOPT) => Ok(None),
        Err(e) => Err(e).context("SO_NETNS_COOKIE"),
    }
}

/// Whether a user namespace is the one this process is in, where it stays.
fn is_own_user_ns(user_ns: &OwnedFd) -> Result<bool> {
    static OWN: OnceLock<(u64, u64)> = OnceLock::new();
    let own = match OWN.get() {
        Some(own) => *own,
        None => {
            let own = nix::sys::stat::stat("/proc/self/ns/user").context("stat /proc/self/ns/user")?;
            *OWN.get_or_init(|| (own.st_dev, own.st_ino))
        }
    };
    let stat = fstat(user_ns).context("fstat of a user namespace")?;
    Ok(own == (stat.st_dev, stat.st_ino))
}

#[expect(clippy::disallowed_methods, reason = "this is the door; the thread is thrown away")]
fn set(fd: BorrowedFd<'_>) -> Result<()> {
    nix::sched::setns(fd, CloneFlags::CLONE_NEWNET).map_err(|e| {
        let kind = if e == Errno::EINVAL { Kind::Invalid } else { Kind::Other };
        Error::from(e).with_kind(kind).context("enter a network namespace")
    })
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::gettid;

    /// The thread that a closure runs on in `netns`, which must be where it says.
    fn inside(netns: &Netns) -> nix::unistd::Pid {
        let (thread, here) = netns.enter(|| (gettid(), Netns::open(Path::new("/proc/thread-self/ns/net")))).unwrap();
        assert_eq!(here.unwrap().id(), netns.id());
        thread
    }

    #[test]
    fn one_at_a_time_works_in_a_namespace() {
        let netns = Netns::scratch().unwrap();
        let held = netns.reserve(Duration::ZERO).unwrap();
        assert!(held.is_some());
        let (again, short) = (netns.try_clone().unwrap(), Duration::from_millis(10));
        assert!(again.reserve(short).unwrap().is_none(), "of the same opening, too");
        assert!(Netns::scratch().unwrap().reserve(short).unwrap().is_some(), "another one is free");
        drop(held);
        assert!(again.reserve(short).unwrap().is_some());
    }

    #[test]
    fn every_namespace_has_an_identity_of_its_own() {
        let (one, other) = (Netns::scratch().unwrap(), Netns::scratch().unwrap());
        let identity = one.identity().unwrap();
        assert_eq!(one.try_clone().unwrap().identity().unwrap(), identity);
        assert_ne!(other.identity().unwrap(), identity);
        let cookies: Vec<Option<u64>> = [&one, &other].map(|netns| netns.identity().unwrap().cookie).to_vec();
        assert!(cookies.iter().all(Option::is_none) || cookies.iter().all(Option::is_some) && cookies[0] != cookies[1]);
    }

    #[test]
    fn the_own_one_needs_no_thread() {
        let (own, other) = (Netns::own().unwrap(), Netns::scratch().unwrap());
        assert_eq!(inside(&own), gettid());
        assert_ne!(inside(&other), gettid());
        // Unless one is elsewhere, or on a thread that was made there.
        other.enter(|| assert_ne!(inside(&own), gettid())).unwrap();
        let made_inside = || thread::spawn("inside", move || inside(&own) == gettid()).unwrap().join().unwrap();
        assert!(!other.enter(made_inside).unwrap());
    }

    #[test]
    fn a_thread_for_one_piece_of_work_goes_itself_once() {
        let work = || {
            let (own, first, second) = (Netns::own().unwrap(), Netns::scratch().unwrap(), Netns::scratch().unwrap());
            assert_eq!(inside(&own), gettid());
            assert_eq!(inside(&first), gettid());
            assert_eq!(inside(&first), gettid(), "it is there already");
            for netns in [&second, &own] {
                assert_ne!(inside(netns), gettid());
            }
        };
        thread::spawn_for_one("once", work).unwrap().join().unwrap();
        // One that is made inside is not at home to begin with.
        let netns = Netns::scratch().unwrap();
        let later = || thread::spawn_for_one("later", || inside(&Netns::scratch().unwrap()) == gettid());
        assert!(!netns.enter(later).unwrap().unwrap().join().unwrap());
    }
}
