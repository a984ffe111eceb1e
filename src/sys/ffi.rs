//! The only file with `unsafe`: system calls for which no crate here has a safe door, each behind a safe function.
#![expect(unsafe_code, reason = "this file is where it is allowed")]

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::unistd::Pid;
use std::cell::OnceCell;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;

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

/// `NS_GET_PARENT` (ioctl_nsfs(2)): the parent of a user namespace.
pub fn ns_parent(ns: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    const NS_GET_PARENT: libc::Ioctl = 0xb702;
    // SAFETY: takes no argument and returns a new close-on-exec descriptor, which nobody else owns.
    unsafe { Ok(OwnedFd::from_raw_fd(Errno::result(libc::ioctl(ns.as_raw_fd(), NS_GET_PARENT))?)) }
}

/// `NS_GET_OWNER_UID` (ioctl_nsfs(2)): who made a user namespace, as ours numbers users.
pub fn ns_owner_uid(ns: BorrowedFd<'_>) -> nix::Result<libc::uid_t> {
    const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
    let mut uid: libc::uid_t = 0;
    // SAFETY: the kernel writes one uid_t to where the pointer leads.
    Errno::result(unsafe { libc::ioctl(ns.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) })?;
    Ok(uid)
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

/// What a child is to become. Everything is made before it exists, since it may not allocate.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// Absolute path.
    pub program: &'a CStr,
    /// With `argv[0]`.
    pub args: &'a [CString],
    /// `KEY=value`.
    pub env: &'a [CString],
    /// Standard input, output and error.
    pub stdio: [BorrowedFd<'a>; 3],
}

/// Starts a program in a process group of its own, with `/` as its directory, every signal unblocked and at its
/// default, and to be killed with the thread that starts it. Returns its number and a descriptor that polls readable
/// once it has ended.
///
/// The child, as that of vfork(2), borrows our memory until it execs, so this costs the same however large we are: copying
/// the page tables of an agent would take longer than the rules it starts iptables for. So it may not change its
/// credentials either: that would reach into the memory it borrows (it clears "dumpable").
pub fn spawn(spawn: &Spawn<'_>) -> nix::Result<(Pid, OwnedFd)> {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(spawn.args), pointers(spawn.env));
    let region = Region::of_thread()?;
    // SAFETY: the pointer is into the region, aligned, and no child is using it: each was waited for below.
    unsafe { region.error().write_volatile(0) };
    let mut order = Order {
        program: spawn.program.as_ptr(),
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        stdio: spawn.stdio.map(|fd| fd.as_raw_fd()),
        parent: std::process::id(),
        error: region.error(),
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: c_int = -1;
    // Our handlers must not run in the child, where they would act on our memory.
    let mut mask = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), Some(&mut mask))?;
    // SAFETY: the child runs on a stack of its own and reads only `order` and what it points to; all of that outlives
    // it, since CLONE_VFORK holds this thread until the child has executed the program or exited.
    let pid = Errno::result(unsafe {
        libc::clone(child, region.stack_top(), flags, (&raw mut order).cast(), &raw mut pidfd)
    });
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
    let pid = Pid::from_raw(pid?);
    // SAFETY: CLONE_PIDFD made this descriptor for us; close-on-exec is always set.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: the pointer is into the region, aligned, and the child is no longer writing.
    match unsafe { order.error.read_volatile() } {
        0 => Ok((pid, pidfd)),
        errno => {
            let _ = nix::sys::wait::waitpid(pid, None);
            Err(Errno::from_raw(errno))
        }
    }
}

/// What the child reads.
struct Order {
    program: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    stdio: [RawFd; 3],
    parent: u32,
    /// Where the child leaves the errno of what failed.
    error: *mut c_int,
}

/// Memory for a child: the word for its error, then its stack.
struct Region(*mut c_void);

impl Region {
    const SIZE: usize = 64 << 10;

    /// The calling thread's, which has one child at a time: it is held until the child is another program.
    fn of_thread() -> nix::Result<Rc<Self>> {
        thread_local! {
            static REGION: OnceCell<Rc<Region>> = const { OnceCell::new() };
        }
        REGION.with(|region| match region.get() {
            Some(region) => Ok(Rc::clone(region)),
            None => {
                let new = Rc::new(Self::new()?);
                Ok(Rc::clone(region.get_or_init(|| new)))
            }
        })
    }

    fn new() -> nix::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Self::SIZE, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(Region(at)) }
    }

    /// Zero there means "no error".
    fn error(&self) -> *mut c_int {
        self.0.cast()
    }

    fn stack_top(&self) -> *mut c_void {
        // SAFETY: one past the end of the mapping, page-aligned; stacks grow down from there.
        unsafe { self.0.byte_add(Self::SIZE) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody refers to any more.
        unsafe { libc::munmap(self.0, Self::SIZE) };
    }
}

/// The child until it is another program. Only async-signal-safe calls; no allocation, no lock, no panic.
extern "C" fn child(order: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes an `Order` that lives until this process has executed or exited.
    let order = unsafe { &*order.cast::<Order>() };
    let Err(errno) = become_program(order);
    // SAFETY: the word is in the region; `_exit` runs none of our exit handlers.
    unsafe {
        order.error.write_volatile(errno as c_int);
        libc::_exit(127)
    }
}

fn become_program(order: &Order) -> nix::Result<std::convert::Infallible> {
    // SAFETY: integers, and pointers to live memory of `order` or of this frame. The raw system calls where libc's own
    // wrappers would have every thread of the process follow, none of which exists here.
    unsafe {
        let zero = |result: c_long| Errno::result(result).map(drop);
        for (fd, number) in order.stdio.into_iter().zip(0..) {
            Errno::result(libc::dup2(fd, number))?;
        }
        zero(libc::setpgid(0, 0).into())?;
        zero(libc::chdir(c"/".as_ptr()).into())?;
        zero(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL).into())?;
        if libc::getppid().unsigned_abs() != order.parent {
            return Err(Errno::ESRCH);
        }
        for signal in 1..=libc::SIGRTMAX() {
            // Fails for the two that libc keeps for itself, and for SIGKILL and SIGSTOP.
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        zero(libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()).into())?;
        libc::execve(order.program, order.argv, order.envp);
        Err(Errno::last())
    }
}

/// `mallopt(3)`: threads share this many heaps. Returns whether the C library took it.
pub(super) fn limit_heaps(heaps: c_int) -> bool {
    // SAFETY: an integer in, an integer out.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, heaps) == 1 }
}
