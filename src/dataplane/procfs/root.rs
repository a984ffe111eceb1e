//! Where a kubelet makes the cgroups of its pods: `kubepods` below its `--cgroup-root`, in one of these spellings.
//!
//! ```text
//! /kubepods/burstable/pod2c48913c-b29f-11e7-9350-020968147796                         driver cgroupfs
//! /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2c48913c_….slice     driver systemd
//! /system.slice/containerd.service/kubepods-burstable-pod2c48913c_….slice:cri-containerd:9bca8d63…
//! ```
//!
//! The last one comes from a kubelet whose driver is systemd and a runtime whose driver is not: the runtime takes the
//! slice for a name and makes a directory of it below the cgroup in which it runs itself.

use super::uid::PodUid;
use crate::error::Result;
use crate::invalid;

/// Quality-of-service classes with a directory of their own; guaranteed pods have none.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

/// Values of the kubelet's `--cgroup-root`: the usual one, and any others that a node may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupRoots(Vec<Root>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Root {
    /// Directories as the driver cgroupfs names them: `kubelet`, `kubepods`.
    names: Vec<String>,
    /// Directories as the driver systemd names them: `kubelet.slice`, `kubelet-kubepods.slice`.
    slices: Vec<String>,
    /// What the names of slices below begin with: `kubelet-kubepods`.
    prefix: String,
}

/// A pod's directory on the way of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Home {
    /// The pod.
    pub uid: PodUid,
    /// Number of parts of the path that lead to the directory that only root can have made.
    pub depth: usize,
    /// Number of parts after which the pod's own directories begin.
    pub consumed: usize,
    /// A runtime made it below its own cgroup, not the kubelet.
    pub by_runtime: bool,
}

impl CgroupRoots {
    /// Takes paths separated by commas, as the kubelet takes them: `/`, `/kubelet`.
    pub fn parse(text: &str) -> Result<Self> {
        let roots: Vec<Root> = text.split(',').map(str::trim).map(Root::parse).collect::<Result<_>>()?;
        Ok(CgroupRoots(roots))
    }

    /// The pod to whose directory these parts of a path lead, exactly where a kubelet makes it.
    pub(super) fn pod(&self, parts: &[&str]) -> Option<Home> {
        self.0
            .iter()
            .find_map(|root| root.by_name(parts).or_else(|| root.by_slice(parts)).or_else(|| root.joined(parts)))
    }
}

impl Default for CgroupRoots {
    /// The hierarchy's own, and that of kind.
    fn default() -> Self {
        CgroupRoots(vec![Root::new(Vec::new()), Root::new(vec!["kubelet".to_owned()])])
    }
}

impl Root {
    fn parse(text: &str) -> Result<Self> {
        let bad = || invalid!("{text:?} is no --cgroup-root of a kubelet: an absolute path is expected");
        let rest = text.strip_prefix('/').ok_or_else(bad)?;
        let names = rest.split('/').filter(|name| !name.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        if names.iter().any(|name| name == "." || name == ".." || name.chars().any(char::is_control)) {
            return Err(bad());
        }
        Ok(Root::new(names))
    }

    fn new(mut names: Vec<String>) -> Self {
        names.push("kubepods".to_owned());
        let mut prefix = String::new();
        let mut slices = Vec::new();
        for name in &names {
            if !prefix.is_empty() {
                prefix.push('-');
            }
            // A dash would begin another slice.
            prefix.push_str(&name.replace('-', "_"));
            slices.push(format!("{prefix}.slice"));
        }
        Root { names, slices, prefix }
    }

    fn by_name(&self, parts: &[&str]) -> Option<Home> {
        let rest = strip(parts, &self.names)?;
        let class = usize::from(rest.first().is_some_and(|first| CLASSES.contains(first)));
        let uid = PodUid::parse(rest.get(class)?.strip_prefix("pod")?)?;
        let depth = self.names.len() + class + 1;
        Some(Home { uid, depth, consumed: depth, by_runtime: false })
    }

    fn by_slice(&self, parts: &[&str]) -> Option<Home> {
        let rest = strip(parts, &self.slices)?;
        let (first, second) = (rest.first()?, rest.get(1));
        let (class, slice) = match CLASSES.into_iter().find(|class| *first == format!("{}-{class}.slice", self.prefix))
        {
            Some(class) => (Some(class), second?),
            None => (None, first),
        };
        let (uid, of) = self.pod_slice(slice)?;
        let depth = self.slices.len() + usize::from(class.is_some()) + 1;
        (of == class).then_some(Home { uid, depth, consumed: depth, by_runtime: false })
    }

    /// `SLICE:RUNTIME:CONTAINER` in the cgroup of the runtime: a service of the system's, or the top.
    fn joined(&self, parts: &[&str]) -> Option<Home> {
        let (depth, name) = match parts {
            ["system.slice", service, name, ..] if service.ends_with(".service") => (2, name),
            [name, ..] => (0, name),
            [] => return None,
        };
        let mut names = name.split(':');
        let (uid, _) = self.pod_slice(names.next()?)?;
        let (_runtime, _container) = (names.next()?, names.next()?);
        Some(Home { uid, depth, consumed: depth + 1, by_runtime: true })
    }

    /// The pod and the class in the name of a pod's slice.
    fn pod_slice(&self, name: &str) -> Option<(PodUid, Option<&'static str>)> {
        let name = name.strip_suffix(".slice")?.strip_prefix(&self.prefix)?.strip_prefix('-')?;
        let in_class = |class: &'static str| Some((class, name.strip_prefix(class)?.strip_prefix('-')?));
        let (class, name) = match CLASSES.into_iter().find_map(in_class) {
            Some((class, rest)) => (Some(class), rest),
            None => (None, name),
        };
        Some((PodUid::parse(name.strip_prefix("pod")?)?, class))
    }
}

/// What follows these names.
fn strip<'a, 'b>(parts: &'a [&'b str], names: &[String]) -> Option<&'a [&'b str]> {
    let (head, rest) = parts.split_at_checked(names.len())?;
    head.iter().zip(names).all(|(part, name)| part == name).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_as_the_kubelet_takes_them() {
        assert_eq!(CgroupRoots::parse("/,/kubelet").unwrap(), CgroupRoots::default());
        assert_eq!(CgroupRoots::parse(" //kubelet/ , / ").unwrap().0.len(), 2);
        let root = Root::parse("/a-b/c").unwrap();
        assert_eq!(root.names, ["a-b", "c", "kubepods"]);
        assert_eq!(root.slices, ["a_b.slice", "a_b-c.slice", "a_b-c-kubepods.slice"]);
        for bad in ["", "kubelet", "/,", "/a/../b", "/a\nb"] {
            assert!(CgroupRoots::parse(bad).unwrap_err().to_string().contains("absolute path"), "{bad}");
        }
    }
}
