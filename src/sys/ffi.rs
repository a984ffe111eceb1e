//! The only file with `unsafe`: system calls for which no crate here has a safe door, each behind a safe function.
#![expect(unsafe_code, reason = "this file is where it is allowed")]

use crate::sys::netns::Netns;
use nix::errno::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// Room for descriptors of one packet. The kernel drops what does not fit and says so.
const MAX_FDS: usize = 16;

/// What [`recvmsg`] got.
#[derive(Debug)]
pub struct Message {
    /// Bytes written into the buffer.
    pub len: usize,
    /// `msg_flags`.
    pub flags: i32,
    /// Every descriptor that was installed.
    pub fds: Vec<OwnedFd>,
}

/// `recvmsg(2)` with `MSG_CMSG_CLOEXEC`; takes over every descriptor that came along, also where the kernel reports
/// that others were lost (`MSG_CTRUNC`), which is where ready-made wrappers leak.
pub fn recvmsg(socket: BorrowedFd<'_>, buf: &mut [u8]) -> nix::Result<Message> {
    /// Control messages must be aligned like their header.
    #[repr(C)]
    union Control {
        _align: libc::cmsghdr,
        // One header (16 bytes), 16 descriptors, and a credentials message (32 bytes) if somebody turned that on.
        bytes: [u8; 64 + MAX_FDS * 4],
    }
    let mut control = Control { bytes: [0; 64 + MAX_FDS * 4] };
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: an all-zero msghdr is valid (null pointers, zero lengths).
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Control>() as _;
    let len = loop {
        // SAFETY: every pointer in the header is to a live local or to `buf`, with its true length.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        match Errno::result(n) {
            Err(Errno::EINTR) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control buffer and its length; the CMSG macros walk inside that length only.
    unsafe {
        let mut cmsg = libc::CMSG_FIRSTHDR(&raw const header);
        while let Some(head) = cmsg.as_ref() {
            if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
                let bytes = head.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(cmsg).cast::<i32>();
                for i in 0..bytes / size_of::<i32>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            cmsg = libc::CMSG_NXTHDR(&raw const header, cmsg);
        }
    }
    Ok(Message { len: len.unsigned_abs(), flags: header.msg_flags, fds })
}

/// `NS_GET_NSTYPE` (ioctl_nsfs(2)): which kind of namespace a descriptor is, as its `CLONE_NEW…` flag. Only for
/// descriptors that are known to lie on nsfs: another driver may take the number for something else.
pub fn ns_type(ns: BorrowedFd<'_>) -> nix::Result<i32> {
    const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
    // SAFETY: takes no argument and returns an integer.
    Errno::result(unsafe { libc::ioctl(ns.as_raw_fd(), NS_GET_NSTYPE) })
}

/// `NS_GET_USERNS` (ioctl_nsfs(2)): the user namespace that owns a namespace.
pub fn ns_user(ns: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    // SAFETY: takes no argument and returns a new close-on-exec descriptor, which nobody else owns.
    unsafe { Ok(OwnedFd::from_raw_fd(Errno::result(libc::ioctl(ns.as_raw_fd(), NS_GET_USERNS))?)) }
}

/// `pidfd_open(2)`: a descriptor that polls readable once the child has ended.
pub fn pidfd_open(pid: u32) -> nix::Result<OwnedFd> {
    // SAFETY: two integers in, a new close-on-exec descriptor out, which nobody else owns.
    unsafe {
        let fd = Errno::result(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// `getsockopt(2)` with an option whose value is a block of bytes; returns how many the kernel wrote.
pub fn getsockopt(socket: BorrowedFd<'_>, level: i32, option: i32, value: &mut [u8]) -> nix::Result<usize> {
    let mut len = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the kernel writes at most `len` bytes, which is the length of `value`.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &raw mut len) };
    Errno::result(result)?;
    Ok(len as usize)
}

/// What a child does between fork and exec: joins the user namespace and then the network namespace given, as its
/// root; unblocks every signal; asks to be killed with the thread that made it (and gives up at once when the parent
/// is already gone).
pub fn in_child(command: &mut Command, join: Option<(Arc<OwnedFd>, Arc<Netns>)>) {
    let parent = std::process::id();
    let hook = move || -> io::Result<()> {
        if let Some((user_ns, netns)) = &join {
            // The kernel forgets PDEATHSIG when credentials change, so this comes first. The raw system calls, since
            // libc's own wrappers would signal threads that do not exist in a forked child.
            // SAFETY: integers only; `setgroups` reads nothing with a count of 0.
            unsafe {
                check(libc::setns(user_ns.as_raw_fd(), libc::CLONE_NEWUSER) as _)?;
                check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
                check(libc::syscall(libc::SYS_setresgid, 0, 0, 0))?;
                check(libc::syscall(libc::SYS_setresuid, 0, 0, 0))?;
                check(libc::setns(netns.as_fd().as_raw_fd(), libc::CLONE_NEWNET) as _)?;
            }
        }
        // SAFETY: all are async-signal-safe, take integers or a pointer to a live local, and change this child only.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            check(libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) as _)?;
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) as _)?;
            if libc::getppid().unsigned_abs() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: the hook allocates nothing, takes no lock and calls only async-signal-safe functions.
    unsafe { command.pre_exec(hook) };
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
