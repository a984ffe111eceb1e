//! Unix sockets: listeners that take an address over without a gap, peers checked before a byte is parsed.

use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use crate::sys::{clock, fd, file};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{PeerCredentials, ReceiveTimeout, SendTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt,
    listen, recv, send, setsockopt, shutdown, socket,
};
use nix::sys::stat::{FchmodatFlags, Mode as NixMode, fchmod, fchmodat, lstat};
use nix::sys::time::{TimeVal, TimeValLike};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Longest path of a socket address, without the NUL at its end (unix(7)).
const MAX_PATH: usize = 107;

/// How long [`Listener::accept`] holds its caller back when the process has no descriptor left, so that no loop around
/// it can spin on the connection that stays pending.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(100);

/// Stream or seqpacket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    /// `SOCK_STREAM`: HTTP.
    Stream,
    /// `SOCK_SEQPACKET`: ZDS, one message per packet.
    SeqPacket,
}

impl SocketType {
    fn socket(self, flags: SockFlag) -> Result<OwnedFd> {
        let kind = match self {
            SocketType::Stream => SockType::Stream,
            SocketType::SeqPacket => SockType::SeqPacket,
        };
        socket(AddressFamily::Unix, kind, flags | SockFlag::SOCK_CLOEXEC, None).context("make a Unix socket")
    }
}

/// Who may connect to a [`Listener`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Root: mode 0600, and the peer is asked who it is.
    Root,
    /// Everybody who reaches the socket's directory: mode 0666.
    Anyone,
}

/// A listening socket that owns its path: bound under a temporary name, renamed over whatever was there; removed on
/// drop only if the file is still ours (inode).
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    access: Access,
    path: PathBuf,
    /// Device and inode of the socket's file. The socket holds the inode, so the number cannot be reused meanwhile.
    inode: (u64, u64),
}

impl Listener {
    /// Binds and listens for root. The directory must exist.
    pub fn bind(path: &Path, kind: SocketType) -> Result<Self> {
        Self::bind_for(path, kind, Access::Root)
    }

    /// Binds and listens. The directory must exist.
    pub fn bind_for(path: &Path, kind: SocketType, access: Access) -> Result<Self> {
        Self::try_bind(path, kind, access).with_context(|| format!("listen on {}", path.display()))
    }

    fn try_bind(path: &Path, kind: SocketType, access: Access) -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        check_length(path)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir_fd = File::open(dir).with_context(|| format!("open directory {}", dir.display()))?;
        let fd = kind.socket(SockFlag::SOCK_NONBLOCK)?;
        // The file gets the mode the socket has when it is bound (unix_bind in the kernel), so it is never open to
        // others, whatever the umask.
        fchmod(&fd, NixMode::S_IRUSR | NixMode::S_IWUSR).context("fchmod")?;
        // Bound through the directory's descriptor, or the longer temporary name might not fit where the name fits.
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temp_name = format!(".socket.tmp.{}.{number}", std::process::id());
        let temp = dir.join(&temp_name);
        file::remove(&temp)?;
        let address = UnixAddr::new(format!("/proc/self/fd/{}/{temp_name}", dir_fd.as_raw_fd()).as_str())?;
        bind(fd.as_raw_fd(), &address).context("bind")?;
        // Before it has its name; the umask has no say in it.
        let opened = match access {
            Access::Root => Ok(()),
            Access::Anyone => {
                let everybody = NixMode::from_bits_truncate(0o666);
                fchmodat(&dir_fd, temp_name.as_str(), everybody, FchmodatFlags::FollowSymlink).context("fchmodat")
            }
        };
        let done = opened.and_then(|()| Self::publish(&fd, &temp, path));
        if done.is_err() {
            let _ = file::remove(&temp);
        }
        done.map(|inode| Listener { fd, access, path: path.to_path_buf(), inode })
    }

    #[expect(clippy::disallowed_methods, reason = "a socket file has no content to make durable")]
    fn publish(fd: &OwnedFd, temp: &Path, path: &Path) -> Result<(u64, u64)> {
        let inode = inode(temp).context("stat the new socket")?;
        // Before the rename: whoever finds the name is served.
        listen(fd, Backlog::MAXALLOWABLE).context("listen")?;
        std::fs::rename(temp, path).context("rename over the old socket")?;
        Ok(inode)
    }

    /// Waits for a connection at most `timeout`; `None` when nobody came. A peer that is not root (SO_PEERCRED), where
    /// only root may, is closed at once and reported as `Refused`. With no descriptor left it fails after a pause; go on and accept
    /// again.
    pub fn accept(&self, timeout: Duration) -> Result<Option<Connection>> {
        if !fd::wait(self.fd.as_fd(), PollFlags::POLLIN, timeout)? {
            return Ok(None);
        }
        let fd = match accept4(&self.fd, SockFlag::SOCK_CLOEXEC) {
            Ok(fd) => fd,
            // Whoever was there has left again, or another thread took it.
            Err(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EINTR) => return Ok(None),
            Err(e) => {
                if matches!(e, Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) {
                    clock::sleep(timeout.min(NO_DESCRIPTOR_PAUSE));
                }
                return Err(e).with_context(|| format!("accept on {}", self.path.display()));
            }
        };
        let peer = getsockopt(&fd, PeerCredentials).context("SO_PEERCRED")?;
        if self.access == Access::Root && peer.uid() != 0 {
            let (uid, pid, path) = (peer.uid(), peer.pid(), self.path.display());
            return Err(Error::of(Kind::Refused, format_args!("{path}: peer is uid {uid} (pid {pid}), only root may")));
        }
        Ok(Some(Connection { fd }))
    }

    /// Whether the path still leads to this socket (another agent may have taken it over).
    pub fn still_ours(&self) -> bool {
        inode(&self.path).is_ok_and(|inode| inode == self.inode)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.still_ours() {
            let _ = file::remove(&self.path);
        }
    }
}

fn inode(path: &Path) -> nix::Result<(u64, u64)> {
    lstat(path).map(|stat| (stat.st_dev, stat.st_ino))
}

fn check_length(path: &Path) -> Result<()> {
    let len = path.as_os_str().len();
    if len > MAX_PATH {
        return Err(invalid!("the path has {len} bytes, a Unix socket's at most {MAX_PATH}; choose a shorter one"));
    }
    Ok(())
}

/// A connected socket.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
}

impl Connection {
    /// Connects within `timeout`.
    pub fn connect(path: &Path, kind: SocketType, timeout: Duration) -> Result<Self> {
        let what = || format!("connect to {}", path.display());
        check_length(path).with_context(what)?;
        let fd = kind.socket(SockFlag::empty())?;
        // A Unix connect waits while the listener's backlog is full, as long as the send time-out says.
        setsockopt(&fd, SendTimeout, &time_val(timeout)).with_context(what)?;
        let address = UnixAddr::new(path).with_context(what)?;
        let deadline = clock::now() + timeout;
        loop {
            match connect(fd.as_raw_fd(), &address) {
                // A process that was stopped and goes on, say; it is not connected.
                Err(Errno::EINTR) if !clock::until(deadline).is_zero() => {}
                connected => break connected.with_context(what)?,
            }
        }
        setsockopt(&fd, SendTimeout, &TimeVal::zero()).with_context(what)?;
        Ok(Connection { fd })
    }

    /// Time-outs of every following read and write; one that passes is a `TimedOut` (`WouldBlock` in `Read`, `Write`).
    pub fn set_timeouts(&self, read: Duration, write: Duration) -> Result<()> {
        setsockopt(&self.fd, ReceiveTimeout, &time_val(read)).context("SO_RCVTIMEO")?;
        setsockopt(&self.fd, SendTimeout, &time_val(write)).context("SO_SNDTIMEO")
    }

    /// The socket as the standard library has it.
    pub fn into_stream(self) -> UnixStream {
        self.fd.into()
    }

    /// Whether the peer has closed completely (`POLLHUP`; a half-closed peer is still there).
    pub fn peer_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::empty())];
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR;
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1)) && fds[0].revents().is_some_and(|r| r.intersects(gone))
    }

    /// Ends both directions; blocked readers wake up.
    pub fn shutdown(&self) {
        // Fails only when the peer has done it already.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both);
    }
}

/// A time-out as the kernel takes it: there 0 is none at all, so it becomes the shortest one.
fn time_val(time: Duration) -> TimeVal {
    TimeVal::microseconds(i64::try_from(time.as_micros()).unwrap_or(i64::MAX).max(1))
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::io::Read for &Connection {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(recv(self.fd.as_raw_fd(), buf, MsgFlags::empty())?)
    }
}

impl std::io::Write for &Connection {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        Ok(send(self.fd.as_raw_fd(), buf, MsgFlags::MSG_NOSIGNAL)?)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
