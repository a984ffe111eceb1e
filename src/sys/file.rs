//! Files: rooted paths and atomic writes.
//!
//! A write never leaves a half-written or empty file, whatever happens: temp name in the same directory, fsync,
//! rename, fsync of the directory.

use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode as NixMode;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use std::fs::{DirBuilder, File, Metadata, Permissions, TryLockError};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory below which the host's files are (`/host` in the container, `/` straight on a host, a temp dir in
/// tests). Paths below it are resolved with `openat2(RESOLVE_IN_ROOT)`: the host's absolute links stay inside.
#[derive(Debug, Clone)]
pub struct HostRoot(PathBuf);

impl HostRoot {
    /// Takes a directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        HostRoot(path.into())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The host's `path` as seen from here, without resolving links (for messages, and for paths we made). It never
    /// leaves the root: `..` is dropped.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        let mut joined = self.0.clone();
        joined.extend(path.as_ref().components().filter(|part| matches!(part, Component::Normal(_))));
        joined
    }

    /// Opens the host's `path` for reading, links resolved inside the root. A namespace file is opened the same way.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        // Not blocking: a FIFO must not stop us.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
        let fd = match self.resolve(path, flags) {
            // A link of /proc such as PID/ns/net leads nowhere a path could: the kernel refuses those below a root.
            Err(Errno::EXDEV | Errno::ELOOP) => self.open_proc_link(path, flags),
            other => other,
        };
        let fd = fd.with_context(|| format!("open {} below {}", path.display(), self.0.display()))?;
        Ok(File::from(fd))
    }

    fn resolve(&self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        let root = nix::fcntl::open(&self.0, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, NixMode::empty())?;
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
        let mut tries = 0;
        loop {
            // EAGAIN: something was renamed while a `..` was being resolved (openat2(2)).
            match openat2(&root, path, how) {
                Err(Errno::EAGAIN | Errno::EINTR) if tries < 16 => tries += 1,
                other => return other,
            }
        }
    }

    /// Opens the last part of a path without the root's protection, but only where the kernel made it: in /proc.
    fn open_proc_link(&self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::EXDEV) };
        let dir = self.resolve(dir, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        if fstatfs(&dir)?.filesystem_type() != PROC_SUPER_MAGIC {
            return Err(Errno::EXDEV);
        }
        openat(&dir, name, flags | OFlag::O_CLOEXEC, NixMode::empty())
    }
}

/// The permission bits a file is written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(pub u32);

/// Reads a whole file of at most `limit` bytes; a larger one is `Invalid`.
pub fn read_limited(path: &Path, limit: usize) -> Result<Vec<u8>> {
    let what = || format!("read {}", path.display());
    let file = open_nonblocking(path).with_context(what)?;
    let mut content = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut content).with_context(what)?;
    if content.len() > limit {
        return Err(invalid!("read {}: larger than {limit} bytes", path.display()));
    }
    Ok(content)
}

/// Opens a file for reading that others may have put there. Does not wait for a FIFO's writer; fails with `Invalid` on
/// whatever is no regular file.
pub fn open_regular(path: &Path) -> Result<File> {
    regular(open_nonblocking(path), path).with_context(|| format!("open {}", path.display()))
}

/// The file, if it is a regular one.
fn regular(opened: std::io::Result<File>, path: &Path) -> Result<File> {
    let file = match opened {
        // A FIFO without a reader.
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => None,
        opened => Some(opened?),
    };
    let file = file.filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file()));
    file.ok_or_else(|| invalid!("{} is no regular file; remove it", path.display()))
}

fn open_nonblocking(path: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Writes `content` unless the file already has exactly it; returns whether it wrote. Atomic and durable. An existing
/// file's mode wins over `mode` when `keep_mode`; otherwise a mode that differs is set, whether or not the content
/// differs. The owner of an existing file is kept where we may.
pub fn write_if_changed(path: &Path, content: &[u8], mode: Mode, keep_mode: bool) -> Result<bool> {
    let what = || format!("write {}", path.display());
    let old = existing(path).with_context(what)?;
    if let Some((file, metadata)) = &old
        && metadata.len() == content.len() as u64
        && has_content(file, content).with_context(what)?
    {
        if !keep_mode && metadata.mode() & 0o7777 != mode.0 {
            file.set_permissions(Permissions::from_mode(mode.0)).with_context(what)?;
        }
        return Ok(false);
    }
    let old = old.map(|(_, metadata)| metadata);
    let old_mode = old.as_ref().filter(|_| keep_mode).map(|metadata| Mode(metadata.mode() & 0o7777));
    let owner = old.map(|metadata| (metadata.uid(), metadata.gid()));
    replace(path, content, old_mode.unwrap_or(mode), owner)?;
    Ok(true)
}

/// Puts `content` in place of whatever is there, atomically and durably, with this mode and, where we may give files
/// away, this owner (user, group).
pub fn replace(path: &Path, content: &[u8], mode: Mode, owner: Option<(u32, u32)>) -> Result<()> {
    let what = || format!("write {}", path.display());
    let mut staged = Staged::create(&temp_name(path)?, mode)?;
    if let Some((user, group)) = owner {
        // Not ours to give away without CAP_CHOWN: then the new file is simply ours.
        let _ = fchown(&staged.file, Some(user), Some(group));
    }
    staged.write_all(content).with_context(what)?;
    staged.commit(path)
}

/// Puts several files in place of what is there, one after the other and in this order: all of them are on the disk
/// before the first gets its name, and nothing but renames lies between the first and the last.
pub fn replace_together(files: &[(&Path, &[u8])], mode: Mode) -> Result<()> {
    let mut staged = Vec::new();
    for (path, content) in files {
        let mut file = Staged::create(&temp_name(path)?, mode)?;
        file.write_all(content).with_context(|| format!("write {}", path.display()))?;
        file.sync()?;
        staged.push((file, path));
    }
    for (file, path) in &mut staged {
        file.rename(path)?;
    }
    files.iter().try_for_each(|(path, _)| sync_parent(path))
}

/// The file for which [`replace`] uses this temporary name; a process that was killed leaves such files behind.
pub fn temp_of(name: &str) -> Option<&str> {
    let (rest, number) = name.strip_prefix('.')?.rsplit_once('.')?;
    let (rest, process) = rest.rsplit_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    rest.strip_suffix(".tmp").filter(|_| is_number(number) && is_number(process))
}

/// Writes a file that need not survive a power cut: atomic, and whole after a kill, but without waiting for the disk.
pub fn replace_volatile(path: &Path, content: &[u8], mode: Mode) -> Result<()> {
    let mut staged = Staged::create(&temp_name(path)?, mode)?;
    staged.write_all(content).with_context(|| format!("write {}", path.display()))?;
    staged.rename(path)
}

/// A name beside `path` that nobody else uses: a dot name with an end that no container runtime takes for a
/// configuration.
fn temp_name(path: &Path) -> Result<PathBuf> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let name = path.file_name().ok_or_else(|| invalid!("write {}: no file name", path.display()))?;
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    Ok(path.with_file_name(format!(".{}.tmp.{}.{number}", name.display(), std::process::id())))
}

fn existing(path: &Path) -> std::io::Result<Option<(File, Metadata)>> {
    match open_nonblocking(path) {
        Ok(file) => {
            let metadata = file.metadata()?;
            Ok(Some((file, metadata)))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn has_content(file: &File, content: &[u8]) -> std::io::Result<bool> {
    same(&mut &*file, &mut &*content)
}

/// Whether two files have the same bytes; both are read from where they stand.
pub fn same_content(a: &File, b: &File) -> Result<bool> {
    let len = |file: &File| file.metadata().map(|metadata| metadata.len());
    Ok(len(a).context("compare")? == len(b).context("compare")? && same(&mut &*a, &mut &*b).context("compare")?)
}

fn same(a: &mut impl Read, b: &mut impl Read) -> std::io::Result<bool> {
    const CHUNK: u64 = 64 * 1024;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    loop {
        left.clear();
        right.clear();
        a.by_ref().take(CHUNK).read_to_end(&mut left)?;
        b.by_ref().take(CHUNK).read_to_end(&mut right)?;
        if left != right {
            return Ok(false);
        }
        if left.is_empty() {
            return Ok(true);
        }
    }
}

/// A file being written under a temporary name. Until [`Staged::commit`] nobody sees it under its own name; dropped
/// before that, it is removed again.
#[derive(Debug)]
pub struct Staged {
    file: File,
    temp: PathBuf,
    committed: bool,
}

impl Staged {
    /// Creates the temporary file, which must not exist yet and must lie in the directory of the final name.
    pub fn create(temp: &Path, mode: Mode) -> Result<Self> {
        let what = || format!("create {}", temp.display());
        let file = File::options().write(true).create_new(true).mode(mode.0).open(temp).with_context(what)?;
        let staged = Staged { file, temp: temp.to_path_buf(), committed: false };
        // Past the umask.
        staged.file.set_permissions(Permissions::from_mode(mode.0)).with_context(what)?;
        Ok(staged)
    }

    /// Makes the content durable and gives the file its name, in place of whatever has it.
    pub fn commit(mut self, path: &Path) -> Result<()> {
        self.sync()?;
        self.rename(path)?;
        sync_parent(path)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_all().with_context(|| format!("fsync {}", self.temp.display()))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn rename(&mut self, path: &Path) -> Result<()> {
        std::fs::rename(&self.temp, path)
            .with_context(|| format!("rename {} to {}", self.temp.display(), path.display()))?;
        self.committed = true;
        Ok(())
    }
}

impl Write for Staged {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.file.write(buf)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Staged {
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn drop(&mut self) {
        if !self.committed {
            let _ = std::fs::remove_file(&self.temp);
        }
    }
}

/// Removes a file; one that is not there is fine (returns whether it was there). The directory is fsynced.
pub fn remove(path: &Path) -> Result<bool> {
    let removed = remove_volatile(path)?;
    if removed {
        sync_parent(path)?;
    }
    Ok(removed)
}

/// Removes a file as [`remove`] does, without waiting for the disk.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn remove_volatile(path: &Path) -> Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e).with_context(|| format!("remove {}", path.display())),
    }
}

/// Makes a new name (or a removal) survive a power cut.
fn sync_parent(path: &Path) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        // Some network and overlay file systems know no fsync of a directory.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(()),
        other => other.with_context(|| format!("fsync {}", dir.display())),
    }
}

/// Makes a directory and its parents.
pub fn create_dir_all(path: &Path, mode: Mode) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(mode.0).create(path);
    made.with_context(|| format!("create directory {}", path.display()))
}

/// An exclusive lock (`flock`) held as long as the value lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock without waiting; `None` when another process holds it. The file is created when missing, and
    /// stays.
    pub fn try_take(path: &Path) -> Result<Option<Self>> {
        let what = || format!("lock {}", path.display());
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NONBLOCK);
        let file = regular(options.open(path), path).with_context(what)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(Error::from(e).with_kind(Kind::Other).context(what())),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make the files the code under test meets")]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn nobody_waits_for_the_other_end_of_a_fifo() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for error in [open_regular(&path).unwrap_err(), Lock::try_take(&path).unwrap_err()] {
            assert!(error.to_string().contains("fifo is no regular file; remove it"), "{error}");
        }
        for other in ["/dev/null", "/"] {
            assert!(open_regular(Path::new(other)).is_err(), "{other}");
        }
        std::fs::write(dir.path().join("file"), "x").unwrap();
        assert!(open_regular(&dir.path().join("file")).is_ok());
        assert!(Lock::try_take(&dir.path().join("file")).unwrap().is_some());
    }

    #[test]
    fn writes_only_what_differs_and_leaves_no_temp() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.conflist");
        assert!(write_if_changed(&path, b"one", Mode(0o640), true).unwrap());
        assert_eq!(mode(&path), 0o640);
        let inode = std::fs::metadata(&path).unwrap().ino();
        assert!(!write_if_changed(&path, b"one", Mode(0o600), true).unwrap());
        assert_eq!((mode(&path), std::fs::metadata(&path).unwrap().ino()), (0o640, inode), "untouched");
        assert!(write_if_changed(&path, b"two", Mode(0o600), true).unwrap());
        assert_eq!((mode(&path), std::fs::read(&path).unwrap()), (0o640, b"two".to_vec()));
        assert!(!write_if_changed(&path, b"two", Mode(0o600), false).unwrap());
        assert_eq!(mode(&path), 0o600, "the mode alone is put right in place");
        assert!(write_if_changed(&path, b"three", Mode(0o644), false).unwrap());
        assert_eq!(mode(&path), 0o644);
        replace_volatile(&path, b"four", Mode(0o600)).unwrap();
        assert_eq!((mode(&path), std::fs::read(&path).unwrap()), (0o600, b"four".to_vec()));
        assert_eq!(names(dir.path()), ["a.conflist"]);
    }

    #[test]
    fn failed_writes_name_file_and_operation_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("no/such");
        let e = write_if_changed(&gone, b"x", Mode(0o600), true).unwrap_err();
        assert_eq!(e.kind(), Kind::NotFound);
        assert!(e.to_string().starts_with(&format!("create {}", dir.path().join("no/.such.tmp").display())), "{e}");
        // The target is a directory: everything works up to the rename.
        std::fs::create_dir(dir.path().join("d")).unwrap();
        let staged = Staged::create(&dir.path().join("istio-cni.tmp.1"), Mode(0o755)).unwrap();
        let e = staged.commit(&dir.path().join("d")).unwrap_err();
        assert!(e.to_string().starts_with("rename "), "{e}");
        assert_eq!(names(dir.path()), ["d"]);
    }

    #[test]
    fn temporary_names_are_known_again() {
        let check = |name: &str, expected: Option<&str>| assert_eq!(temp_of(name), expected, "{name}");
        check(".10-a.conflist.tmp.12.0", Some("10-a.conflist"));
        check(".tmp.12.0", None);
        check(".a.tmp.12.", None);
        check(".a.tmp.x.1", None);
        check("a.tmp.1.1", None);
        check("", None);
        let dir = tempfile::tempdir().unwrap();
        replace(&dir.path().join("a"), b"x", Mode(0o640), Some((1, 2))).unwrap();
        let metadata = std::fs::metadata(dir.path().join("a")).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.uid(), metadata.gid()), (0o640, 1, 2));
    }

    #[test]
    fn reads_up_to_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read_limited(&path, 5).unwrap(), b"12345");
        assert_eq!(read_limited(&path, 4).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(read_limited(&dir.path().join("g"), 4).unwrap_err().kind(), Kind::NotFound);
        assert!(!read_limited(Path::new("/proc/self/stat"), 4096).unwrap().is_empty());
    }

    #[test]
    fn removing_twice_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"").unwrap();
        assert!(remove(&path).unwrap());
        assert!(!remove(&path).unwrap());
        assert!(remove(dir.path()).is_err());
    }

    #[test]
    fn same_content_compares_bytes_beyond_a_chunk() {
        let dir = tempfile::tempdir().unwrap();
        let check = |a: &[u8], b: &[u8], expected: bool| {
            std::fs::write(dir.path().join("a"), a).unwrap();
            std::fs::write(dir.path().join("b"), b).unwrap();
            let open = |name: &str| File::open(dir.path().join(name)).unwrap();
            assert_eq!(same_content(&open("a"), &open("b")).unwrap(), expected);
        };
        let big = vec![7; 200_000];
        let mut other = big.clone();
        other[199_999] = 8;
        check(b"", b"", true);
        check(&big, &big, true);
        check(&big, &other, false);
        check(&big, &big[1..], false);
    }

    #[test]
    fn root_keeps_links_inside() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        std::fs::create_dir_all(dir.path().join("run/netns")).unwrap();
        std::fs::write(dir.path().join("run/netns/a"), b"inside").unwrap();
        std::fs::create_dir(dir.path().join("var")).unwrap();
        symlink("/run", dir.path().join("var/run")).unwrap();
        symlink("../../../../../../etc/passwd", dir.path().join("escape")).unwrap();
        let read = |path: &str| {
            let mut text = String::new();
            root.open(path).map(|mut f| f.read_to_string(&mut text).map(|_| text).unwrap())
        };
        assert_eq!(read("/var/run/netns/a").unwrap(), "inside");
        assert_eq!(read("/escape").unwrap_err().kind(), Kind::NotFound);
        assert_eq!(read("/../../run/netns/a").unwrap(), "inside");
        assert_eq!(root.join("/../a/./b"), dir.path().join("a/b"));
    }

    #[test]
    fn root_opens_namespace_links_of_proc() {
        let file = HostRoot::new("/").open("/proc/self/ns/net").unwrap();
        assert_eq!(file.metadata().unwrap().ino(), std::fs::metadata("/proc/self/ns/net").unwrap().ino());
        assert_eq!(HostRoot::new("/proc/self").open("/ns/net").map(|_| ()).map_err(|e| e.kind()), Ok(()));
        assert!(HostRoot::new("/").open("/proc/self/ns/nothing").is_err());
    }

    #[test]
    fn a_lock_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = Lock::try_take(&path).unwrap();
        assert!(first.is_some());
        assert!(Lock::try_take(&path).unwrap().is_none());
        drop(first);
        assert!(Lock::try_take(&path).unwrap().is_some());
    }
}
