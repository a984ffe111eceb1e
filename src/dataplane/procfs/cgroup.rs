//! Whose process is it? What the text of `/proc/PID/cgroup` proves (cgroups(7)).
//!
//! Each line is `hierarchy:controllers:path`. Anybody can be given a part of a hierarchy and make directories of any
//! name there: users by systemd, containers by their runtime. So a name alone says nothing. The first directory that
//! only root can make, exactly where a kubelet makes those of its pods ([`CgroupRoots`]), decides; what is below it
//! is the pod's own business.

use super::refusal::Refusal;
use super::root::{CgroupRoots, Home};
use super::uid::{PodUid, is_hex};

/// How paths are to be read on a node: where its kubelet puts pods, and where the node itself begins, which may be a
/// container.
#[derive(Debug, Clone)]
pub struct Layout<'a> {
    roots: &'a CgroupRoots,
    /// The node's top directory in a hierarchy, by its controllers, where it is not the hierarchy's.
    tops: Vec<(String, Vec<String>)>,
}

/// What a process's cgroups prove.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judgement {
    /// The pod whose process it is.
    pub member: Option<Member>,
    /// Pods that are named besides, in a way that proves nothing.
    pub refused: Vec<(PodUid, Refusal)>,
}

/// A process of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The pod.
    pub uid: PodUid,
    /// The directories that say so, one in each hierarchy that does.
    pub proofs: Vec<Proof>,
}

/// A directory that must be root's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The controllers of its hierarchy, as the kernel writes them; empty for version 2.
    pub controllers: String,
    /// Its path.
    pub path: String,
    /// It is not the kubelet's: the path alone is not enough.
    pub by_runtime: bool,
}

/// What one line says.
struct Claim<'a> {
    home: Home,
    container: Option<&'a str>,
    proof: Proof,
}

impl<'a> Layout<'a> {
    /// Takes the text of process 1's cgroup file, read where the others will be: a node that is a container without a
    /// cgroup namespace of its own has its pods below its own directory.
    pub fn new(roots: &'a CgroupRoots, first: &str) -> Self {
        let tops = lines(first).filter_map(|(controllers, path)| {
            let mut parts: Vec<String> = parts(path)?.into_iter().map(str::to_owned).collect();
            // Where systemd, and other inits, go to make room for the rest.
            parts.pop_if(|last| matches!(last.as_str(), "init.scope" | "init"));
            (!parts.is_empty()).then(|| (controllers.to_owned(), parts))
        });
        Layout { roots, tops: tops.collect() }
    }

    /// Judges the text of a process's cgroup file.
    pub fn judge(&self, text: &str) -> Judgement {
        let mut judgement = Judgement::default();
        let mut claims: Vec<Claim<'_>> = Vec::new();
        for (controllers, path) in lines(text) {
            let Some(parts) = parts(path) else {
                judgement.refuse_all(path.split('/'), |path| Refusal::OutOfView(path.to_owned()), path);
                continue;
            };
            let top = self.tops.iter().find(|(of, top)| of == controllers && begins_with(&parts, top));
            let top = top.map_or(0, |(_, top)| top.len());
            let home = parts.get(top..).filter(|_| counts(controllers)).and_then(|parts| self.roots.pod(parts));
            let Some(home) = home else {
                judgement.refuse_all(parts.into_iter(), |path| Refusal::Misplaced(path.to_owned()), path);
                continue;
            };
            let below = parts.get(top + home.consumed..).unwrap_or_default();
            judgement.refuse_all(below.iter().copied(), |path| Refusal::Nested(path.to_owned()), path);
            let (dir, rest) = parts.split_at_checked(top + home.depth).unwrap_or((&parts, &[]));
            let container = rest.iter().flat_map(|part| part.split(':')).find_map(container);
            let proof = Proof {
                controllers: controllers.to_owned(),
                path: format!("/{}", dir.join("/")),
                by_runtime: home.by_runtime,
            };
            claims.push(Claim { home, container, proof });
        }
        judgement.settle(claims);
        judgement
    }
}

impl Judgement {
    /// Notes the pods that are named by parts of a path.
    fn refuse_all<'a>(&mut self, parts: impl Iterator<Item = &'a str>, why: impl Fn(&str) -> Refusal, path: &str) {
        for uid in parts.flat_map(|part| part.split(':')).filter_map(named) {
            self.refuse(uid, why(path));
        }
    }

    fn refuse(&mut self, uid: PodUid, why: Refusal) {
        if !self.refused.iter().any(|(of, known)| *of == uid && known.is_like(&why)) {
            self.refused.push((uid, why));
        }
    }

    /// Lines that disagree say nothing.
    fn settle(&mut self, claims: Vec<Claim<'_>>) {
        let Some(first) = claims.first() else { return };
        let mut containers = claims.iter().filter_map(|claim| claim.container);
        let one = containers.next();
        if claims.iter().all(|claim| claim.home.uid == first.home.uid) && containers.all(|other| Some(other) == one) {
            let uid = first.home.uid.clone();
            // That it is named again below says nothing against it.
            self.refused.retain(|(of, _)| *of != uid);
            self.member = Some(Member { uid, proofs: claims.into_iter().map(|claim| claim.proof).collect() });
        } else {
            for claim in claims {
                self.refuse(claim.home.uid, Refusal::Ambiguous);
            }
        }
    }
}

/// Controllers and path of each line.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('\n').filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':').filter(|(_, path)| path.starts_with('/'))
    })
}

/// The parts of a path; `None` for one that leads out of the reader's cgroup namespace.
fn parts(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    (!parts.contains(&"..")).then_some(parts)
}

fn begins_with(parts: &[&str], top: &[String]) -> bool {
    parts.len() >= top.len() && parts.iter().zip(top).all(|(part, top)| part == top)
}

/// Whether runtimes keep pods in this hierarchy. Whoever may mount can make one with any other name, empty but for
/// what he puts there.
fn counts(controllers: &str) -> bool {
    !controllers.starts_with("name=") || controllers == "name=systemd"
}

/// The pod that a directory is named after: `pod<uid>`, or `kubepods-burstable-pod<uid>.slice`.
fn named(part: &str) -> Option<PodUid> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let (before, uid) = name.rsplit_once("pod")?;
    if before.is_empty() || before.ends_with('-') { PodUid::parse(uid) } else { None }
}

/// A container's id, 64 hexadecimal digits, alone or as in `crio-conmon-<id>.scope`.
fn container(part: &str) -> Option<&str> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
    is_hex(id, 64).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: &str = include_str!("../../../test-fixtures/procfs/cgroup.txt");

    /// One case of the fixture.
    #[derive(Default)]
    struct Case {
        roots: CgroupRoots,
        /// The cgroup file of process 1.
        first: String,
        /// The cgroup file.
        file: String,
        member: Option<PodUid>,
        /// Uid and kind.
        refused: Vec<(PodUid, String)>,
    }

    fn case(text: &str) -> Option<Case> {
        let mut case = Case::default();
        let mut said = false;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                _ if line.starts_with("  ") => case.file += &format!("{}\n", line.trim_start()),
                ["roots", roots] => case.roots = CgroupRoots::parse(roots).unwrap(),
                ["first", line] => case.first += &format!("{line}\n"),
                ["refused", uid, kind] => case.refused.push((PodUid::parse(uid).unwrap(), (*kind).to_owned())),
                ["-"] => said = true,
                [uid] => {
                    said = true;
                    case.member = Some(PodUid::parse(uid).unwrap());
                }
                other => panic!("{other:?}"),
            }
        }
        said.then_some(case)
    }

    fn kind(why: &Refusal) -> String {
        let text = format!("{why:?}");
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_lowercase()
    }

    #[test]
    fn cases() {
        let (mut members, mut strangers) = (0, 0);
        for text in CASES.split("\n\n") {
            let Some(case) = case(text) else { continue };
            let judgement = Layout::new(&case.roots, &case.first).judge(&case.file);
            assert_eq!(judgement.member.as_ref().map(|member| &member.uid), case.member.as_ref(), "{text}");
            let refused = judgement.refused.iter().map(|(uid, why)| (uid.clone(), kind(why)));
            assert_eq!(refused.collect::<Vec<_>>(), case.refused, "{text}");
            *if case.member.is_some() { &mut members } else { &mut strangers } += 1;
        }
        assert!(members >= 30 && strangers >= 30, "{members} and {strangers} cases");
    }

    #[test]
    fn the_directories_that_prove_it() {
        let uid = "2c48913c-b29f-11e7-9350-020968147796";
        let check = |first: &str, line: &str, controllers: &str, path: &str, by_runtime: bool| {
            let roots = CgroupRoots::default();
            let member = Layout::new(&roots, first).judge(line).member.unwrap();
            let proof = Proof { controllers: controllers.to_owned(), path: path.to_owned(), by_runtime };
            assert_eq!(member.proofs, [proof], "{line}");
        };
        let dir = format!("/kubepods/burstable/pod{uid}");
        check("", &format!("0::{dir}/abc/def"), "", &dir, false);
        check("", &format!("4:cpu,cpuacct:{dir}"), "cpu,cpuacct", &dir, false);
        let line = format!("4:memory:/docker/1{dir}/abc");
        check("4:memory:/docker/1/init.scope", &line, "memory", &format!("/docker/1{dir}"), false);
        let name = format!("kubepods-burstable-pod{uid}.slice:cri-containerd:1");
        check("", &format!("0::/system.slice/k3s.service/{name}"), "", "/system.slice/k3s.service", true);
        check("", &format!("0::/{name}"), "", "/", true);
    }

    #[test]
    fn any_prefix_of_any_file_is_harmless() {
        for text in CASES.split("\n\n") {
            let Some(case) = case(text) else { continue };
            for end in (0..case.file.len()).filter(|end| case.file.is_char_boundary(*end)) {
                let layout = Layout::new(&case.roots, &case.first);
                let uids = layout.judge(&case.file[..end]);
                let uids = uids
                    .member
                    .map(|member| member.uid)
                    .into_iter()
                    .chain(uids.refused.into_iter().map(|(uid, _)| uid));
                let digits: String = case.file.chars().filter(|c| !matches!(c, '-' | '_')).collect();
                for uid in uids {
                    assert!(digits.contains(&format!("{uid:?}")), "{text}");
                }
            }
        }
    }
}
