//! Whose process is it? The pod's uid and the container's id in `/proc/PID/cgroup`.
//!
//! Each line is `hierarchy:controllers:path`; the path tells the pod, in the ways of cgroup v1 and v2, of kubelet's
//! cgroupfs and systemd drivers, and of containerd, CRI-O and docker:
//!
//! ```text
//! /kubepods/burstable/pod2c48913c-b29f-11e7-9350-020968147796/9bca8d63…
//! /kubepods.slice/kubepods-pod2c48913c_b29f_11e7_9350_020968147796.slice/cri-containerd-9bca8d63….scope
//! /system.slice/containerd.service/kubepods-besteffort-pod2c48913c_….slice:cri-containerd:9bca8d63…
//! /../../pod2c48913c-b29f-11e7-9350-020968147796/9bca8d63…
//! ```

use std::fmt;

/// A pod's uid in the one form in which all spellings are equal: 32 lower-case hexadecimal digits. A static pod's
/// `config.hash` has this form, too.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodUid(String);

impl PodUid {
    /// Takes a uid with `-`, with `_`, or without; `None` when it is none that a cgroup could carry.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|c| !matches!(c, '-' | '_')).collect();
        is_hex(&digits, 32).then(|| PodUid(digits.to_ascii_lowercase()))
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The pod a process belongs to, from the whole text of its cgroup file. `None` when no line names a pod, or when two
/// lines disagree about pod or container: such a process is no witness.
pub fn pod_of(text: &str) -> Option<PodUid> {
    let mut found: Option<(PodUid, Option<&str>)> = None;
    for (pod, container) in text.lines().filter_map(of_line) {
        match &mut found {
            None => found = Some((pod, container)),
            Some((known, _)) if *known != pod => return None,
            Some((_, known)) => match (&known, container) {
                (Some(one), Some(other)) if *one != other => return None,
                (None, Some(_)) => *known = container,
                _ => {}
            },
        }
    }
    found.map(|(pod, _)| pod)
}

/// The innermost pod of a path, and the outermost container below it.
fn of_line(line: &str) -> Option<(PodUid, Option<&str>)> {
    let path = line.splitn(3, ':').nth(2)?;
    let mut found = None;
    for segment in path.split(['/', ':']) {
        if let Some(pod) = pod_segment(segment) {
            found = Some((pod, None));
        } else if let Some((_, container @ None)) = &mut found {
            *container = container_segment(segment);
        }
    }
    found
}

/// `pod<uid>`, or `kubepods-burstable-pod<uid>.slice`.
fn pod_segment(segment: &str) -> Option<PodUid> {
    let name = segment.strip_suffix(".slice").unwrap_or(segment);
    let (before, uid) = name.rsplit_once("pod")?;
    if before.is_empty() || before.ends_with('-') { PodUid::parse(uid) } else { None }
}

/// A container's id, 64 hexadecimal digits, alone or as in `crio-conmon-<id>.scope`.
fn container_segment(segment: &str) -> Option<&str> {
    let name = segment.strip_suffix(".scope").unwrap_or(segment);
    let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
    is_hex(id, 64).then_some(id)
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `<expected uid or ->`, a line, then the cgroup file, indented; cases are separated by empty lines.
    const CASES: &str = include_str!("../../../test-fixtures/procfs/cgroup.txt");

    #[test]
    fn formats() {
        let mut count = 0;
        for case in CASES.split("\n\n") {
            let lines: Vec<&str> = case.lines().filter(|line| !line.starts_with('#')).collect();
            let [expected, file @ ..] = lines.as_slice() else { continue };
            let file: String = file.iter().map(|line| format!("{}\n", line.trim_start())).collect();
            let want = PodUid::parse(expected);
            assert_eq!(want.is_none(), *expected == "-", "{case}");
            assert_eq!(pod_of(&file), want, "{case}");
            count += 1;
        }
        assert!(count >= 20, "{count} cases");
    }

    #[test]
    fn uids() {
        let want = PodUid::parse("2c48913c-b29f-11e7-9350-020968147796");
        assert!(want.is_some());
        assert_eq!(PodUid::parse("2C48913C_b29f_11e7_9350_020968147796"), want);
        assert_eq!(PodUid::parse("2c48913cb29f11e79350020968147796"), want);
        for bad in [
            "",
            "1",
            "2c48913c-b29f-11e7-9350-02096814779",
            "2c48913c-b29f-11e7-9350-0209681477966",
            "g".repeat(32).as_str(),
        ] {
            assert_eq!(PodUid::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn any_prefix_of_any_file_is_harmless() {
        for case in CASES.split("\n\n") {
            for end in (0..case.len()).filter(|end| case.is_char_boundary(*end)) {
                pod_of(&case[..end]);
            }
        }
    }
}
