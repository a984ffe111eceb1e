//! Why a process that is said to be a pod's is not taken for one.

use std::fmt;

/// A process that names a pod, or is in a namespace with its address, and proves nothing. Written as the object of
/// "refused".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Its cgroup's path names the pod where no kubelet makes a pod's directory: anybody who was given a part of the
    /// hierarchy can make such a name.
    Misplaced(String),
    /// Its cgroup is below another pod's, which may have been given that part of the hierarchy.
    Nested(String),
    /// Its cgroup is outside of the cgroup namespace from which it was looked at.
    OutOfView(String),
    /// The hierarchies disagree about the pod, or about the container.
    Ambiguous,
    /// The cgroup's directory is not root's.
    Owned {
        /// The directory.
        dir: String,
        /// The user id of its owner.
        owner: u32,
    },
    /// Who owns the cgroup's directory cannot be seen, and the path alone proves nothing.
    Unseen(String),
    /// Its network belongs to another user namespace, and the pod is said to have none of its own.
    UserNamespace,
    /// Its network belongs to a user namespace that no runtime made.
    Maker(u32),
    /// Its network belongs to a user namespace within the pod's, or outside of ours.
    Inner,
    /// No interface in its network namespace has one of the pod's addresses: it is another pod's, or the source still
    /// tells the addresses of an earlier sandbox.
    Address,
    /// No interface in its network namespace has any address.
    Bare,
    /// It changed while it was looked at, or cannot be looked at.
    Unreadable(String),
}

impl Refusal {
    /// Whether another one is of the same kind: one example of each is enough.
    pub fn is_like(&self, other: &Refusal) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Misplaced(path) => write!(
                f,
                "a process in cgroup {}, which is not where a kubelet puts a pod (--kubelet-cgroup-root)",
                Short(path)
            ),
            Refusal::Nested(path) => write!(f, "a process in cgroup {}, which is inside another pod's", Short(path)),
            Refusal::OutOfView(path) => write!(
                f,
                "a process in cgroup {}, which cannot be told from the agent's cgroup namespace (/proc/1/ns/cgroup of \
                 the host is needed)",
                Short(path)
            ),
            Refusal::Ambiguous => f.write_str("a process whose cgroups name different pods or containers"),
            Refusal::Owned { dir, owner } => {
                write!(f, "a process in cgroup {}, which belongs to user {owner}, not to root", Short(dir))
            }
            Refusal::Unseen(dir) => write!(
                f,
                "a process in cgroup {}, whose owner cannot be seen (the host's /sys/fs/cgroup is needed)",
                Short(dir)
            ),
            Refusal::UserNamespace => f.write_str(
                "a process whose network belongs to another user namespace, where the pod does not say hostUsers: false",
            ),
            Refusal::Maker(user) => {
                write!(f, "a process whose network belongs to a user namespace that user {user} made, not a runtime")
            }
            Refusal::Inner => f.write_str(
                "a process whose network belongs to a user namespace that was made inside the pod, or outside of the \
                 node's",
            ),
            Refusal::Address => f.write_str("a process in a network namespace that has none of the pod's addresses"),
            Refusal::Bare => f.write_str(
                "a process in a network namespace that has no address at all (a sandboxed runtime, as gVisor, \
                 takes them over, and no rule sees a packet; --exclude-runtime-classes leaves such pods out)",
            ),
            Refusal::Unreadable(why) => write!(f, "a process that cannot be looked at: {why}"),
        }
    }
}

/// A name that others chose: its end says most.
struct Short<'a>(&'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 200;
        let chars = self.0.chars().count();
        let cut = self.0.char_indices().nth(chars.saturating_sub(MOST)).map_or(0, |(at, _)| at);
        let dots = if cut > 0 { "…" } else { "" };
        write!(f, "{dots}{}", self.0.get(cut..).unwrap_or_default().escape_debug())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_others_chose_are_cut_and_escaped() {
        let text = Refusal::Misplaced(format!("/{}\n\u{1b}pod", "ä".repeat(5000))).to_string();
        assert!(text.starts_with("a process in cgroup …ää") && text.contains("\\n\\u{1b}pod, which"), "{text}");
        assert!(text.chars().count() < 400, "{text}");
        assert_eq!(
            Refusal::Nested("/a".to_owned()).to_string(),
            "a process in cgroup /a, which is inside another pod's"
        );
        assert_eq!(Short("").to_string(), "");
    }
}
