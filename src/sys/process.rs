//! One process, held by its directory in `/proc`: everything that is read through it is of this process, also when
//! its number has been given to another one meanwhile (proc(5): reads fail once it is gone).

use super::netns::{Netns, NetnsId};
use crate::error::{Context, Result};
use crate::invalid;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, fstatat};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

/// More than the kernel writes into any of the files that are read here: a line of a `cgroup` file has one path, and
/// there are a dozen hierarchies at most.
const LIMIT: usize = 64 << 10;

/// See the module.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// Opens its directory: `/proc/PID`.
    pub fn open(dir: &Path) -> Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        open(dir, flags, Mode::empty()).map(Process).with_context(|| format!("open {}", dir.display()))
    }

    /// The text of one of its files, such as `cgroup`. What is not UTF-8 is replaced.
    pub fn read(&self, name: &str) -> Result<String> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&self.0, name, flags, Mode::empty()).with_context(|| format!("open {name} of a process"))?;
        let mut content = Vec::new();
        let read = File::from(file).take(LIMIT as u64 + 1).read_to_end(&mut content);
        read.with_context(|| format!("read {name} of a process"))?;
        if content.len() > LIMIT {
            return Err(invalid!("{name} of a process is larger than {LIMIT} bytes"));
        }
        Ok(String::from_utf8_lossy(&content).into_owned())
    }

    /// Its network namespace now, without holding it.
    pub fn netns_id(&self) -> Result<NetnsId> {
        let stat =
            fstatat(&self.0, "ns/net", AtFlags::empty()).context("look at the network namespace of a process")?;
        Ok(NetnsId { dev: stat.st_dev, ino: stat.st_ino })
    }

    /// Its network namespace now.
    pub fn netns(&self) -> Result<Netns> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let fd = openat(&self.0, "ns/net", flags, Mode::empty());
        Netns::from_fd(fd.context("open the network namespace of a process")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_process_is_read_through_its_directory() {
        let own = Process::open(Path::new(&format!("/proc/{}", std::process::id()))).unwrap();
        assert!(own.read("stat").unwrap().starts_with(&std::process::id().to_string()));
        assert_eq!(own.netns().unwrap().id(), own.netns_id().unwrap());
        assert_eq!(own.netns_id().unwrap(), Netns::own().unwrap().id());
        assert_eq!(own.read("nothing").unwrap_err().kind(), Kind::NotFound);
        assert!(own.read("root").is_err(), "no link is followed");
        assert!(Process::open(Path::new("/proc/self")).is_err(), "nor is that of the directory");
        assert_eq!(Process::open(Path::new("/proc/0")).unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn a_process_that_has_ended_is_no_other_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("1/ns")).unwrap();
        let process = Process::open(&dir.path().join("1")).unwrap();
        std::fs::remove_dir_all(dir.path().join("1")).unwrap();
        std::fs::create_dir_all(dir.path().join("1/ns")).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test makes the file the code under test meets")]
        std::fs::write(dir.path().join("1/cgroup"), "0::/\n").unwrap();
        assert_eq!(process.read("cgroup").unwrap_err().kind(), Kind::NotFound);
    }
}
