//! One search over what the runtimes and drivers of this world write, and over what an attacker does: each with a real
//! process in real cgroups, all at once.

use super::{CONTAINER, DELEGATED, UNPRIVILEGED, USER};
use crate::standalone::netns;
use crate::support::container::{Container, Process, V1, V2};
use crate::support::netns::PodNetns;
use ferrule::dataplane::procfs::root::CgroupRoots;
use ferrule::dataplane::procfs::{Findings, Processes, Wanted};
use ferrule::sys::file::HostRoot;
use ferrule::sys::netlink::add_address;
use ferrule::sys::netns::Netns;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

/// The network that a process has.
#[derive(Clone, Copy)]
enum Network {
    /// The pod's, which belongs to the node.
    Pod,
    /// Another pod's, which belongs to the node.
    Other,
    /// One of a user namespace that a runtime made.
    Runtime,
    /// One of a user namespace that an unprivileged user made.
    User,
    /// One of a user namespace that was made inside that of a runtime.
    Inner,
}

/// A process that says it is a pod's.
struct Variation {
    what: &'static str,
    /// Its cgroups: hierarchy and path, with `UID`, its spelling with underscores `U_ID`, and `ID` for the container.
    cgroups: &'static [(&'static str, &'static str)],
    /// Parts of the hierarchy that the user was given.
    given: &'static [(&'static str, &'static str)],
    network: Network,
    host_users: bool,
    /// What the refusal says; `None`: its network is the pod's.
    refused: Option<&'static str>,
}

const PLAIN: Variation =
    Variation { what: "", cgroups: &[], given: &[], network: Network::Pod, host_users: true, refused: None };

const CGROUPFS: &str = "/kubepods/burstable/podUID/ID";
const SYSTEMD: &str =
    "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/cri-containerd-ID.scope";
const JOINED: &str = "/system.slice/containerd.service/kubepods-burstable-podU_ID.slice:cri-containerd:ID";
const ELSEWHERE: Option<&str> = Some("not where a kubelet puts a pod");
const NESTED: Option<&str> = Some("inside another pod's");
const NOT_ROOTS: Option<&str> = Some("belongs to user 4242");

const VARIATIONS: [Variation; 36] = [
    Variation { what: "containerd, cgroupfs, version 2", cgroups: &[(V2, CGROUPFS)], ..PLAIN },
    Variation { what: "containerd, cgroupfs, version 1", cgroups: &[(V1, CGROUPFS)], ..PLAIN },
    Variation { what: "containerd, cgroupfs, both versions", cgroups: &[(V1, CGROUPFS), (V2, CGROUPFS)], ..PLAIN },
    Variation { what: "containerd, systemd, version 2", cgroups: &[(V2, SYSTEMD)], ..PLAIN },
    Variation { what: "containerd, systemd, version 1", cgroups: &[(V1, SYSTEMD)], ..PLAIN },
    Variation {
        what: "containerd, systemd, version 1, while version 2 is the runtime's own",
        cgroups: &[(V1, SYSTEMD), (V2, "/system.slice/containerd.service")],
        ..PLAIN
    },
    Variation {
        what: "CRI-O, systemd, guaranteed",
        cgroups: &[(V2, "/kubepods.slice/kubepods-podU_ID.slice/crio-ID.scope/container")],
        ..PLAIN
    },
    Variation { what: "CRI-O, cgroupfs", cgroups: &[(V2, "/kubepods/besteffort/podUID/crio-ID")], ..PLAIN },
    Variation {
        what: "cri-dockerd, systemd, version 1",
        cgroups: &[(V1, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/docker-ID.scope")],
        ..PLAIN
    },
    Variation { what: "cri-dockerd, cgroupfs", cgroups: &[(V1, "/kubepods/podUID/ID")], ..PLAIN },
    Variation { what: "a kubelet with systemd, a runtime without", cgroups: &[(V2, JOINED)], ..PLAIN },
    Variation { what: "kind, cgroupfs", cgroups: &[(V2, "/kubelet/kubepods/burstable/podUID/ID")], ..PLAIN },
    Variation {
        what: "kind, systemd",
        cgroups: &[(
            V2,
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
             kubelet-kubepods-burstable-podU_ID.slice/cri-containerd-ID.scope",
        )],
        ..PLAIN
    },
    Variation {
        what: "a cgroup root of its own",
        cgroups: &[(
            V2,
            "/tenants.slice/tenants-a_b.slice/tenants-a_b-kubepods.slice/tenants-a_b-kubepods-podU_ID.slice",
        )],
        ..PLAIN
    },
    Variation {
        what: "systemd runs in the pod, which has the rest of the hierarchy",
        cgroups: &[(V2, "/kubepods/podUID/ID/user.slice/user@4242.service")],
        given: &[(V2, "/kubepods/podUID/ID")],
        ..PLAIN
    },
    Variation {
        what: "hostUsers: false",
        cgroups: &[(V2, CGROUPFS)],
        network: Network::Runtime,
        host_users: false,
        ..PLAIN
    },
    Variation { what: "hostUsers: false, to no effect", cgroups: &[(V2, CGROUPFS)], host_users: false, ..PLAIN },
    // The attacks.
    Variation {
        what: "a user's part of the hierarchy, and a network of his own",
        cgroups: &[(V2, "/user.slice/user-4242.slice/user@4242.service/podUID")],
        given: &[(V2, DELEGATED)],
        network: Network::User,
        refused: ELSEWHERE,
        ..PLAIN
    },
    Variation {
        what: "a user's part of version 1",
        cgroups: &[(V1, "/user.slice/user-4242.slice/user@4242.service/podUID")],
        given: &[(V1, DELEGATED)],
        network: Network::User,
        refused: ELSEWHERE,
        ..PLAIN
    },
    Variation {
        what: "a user's part of the hierarchy, in the pod's network",
        cgroups: &[(V2, "/user.slice/user-4242.slice/user@4242.service/kubepods/burstable/podUID/ID")],
        given: &[(V2, DELEGATED)],
        refused: ELSEWHERE,
        ..PLAIN
    },
    Variation {
        what: "the kubelet's slices in a user's part",
        cgroups: &[(
            V2,
            "/user.slice/user-4242.slice/user@4242.service/kubepods.slice/kubepods-podU_ID.slice/cri-containerd-ID.scope",
        )],
        given: &[(V2, DELEGATED)],
        refused: ELSEWHERE,
        ..PLAIN
    },
    Variation {
        what: "a name as runtimes join it, in a user's part",
        cgroups: &[(V2, "/user.slice/user-4242.slice/user@4242.service/kubepods-podU_ID.slice:cri-containerd:ID")],
        given: &[(V2, DELEGATED)],
        refused: ELSEWHERE,
        ..PLAIN
    },
    Variation {
        what: "a name as runtimes join it, in a service that runs as the user",
        cgroups: &[(V2, "/system.slice/backup.service/kubepods-podU_ID.slice:cri-containerd:ID")],
        given: &[(V2, "/system.slice/backup.service")],
        refused: NOT_ROOTS,
        ..PLAIN
    },
    Variation {
        what: "the same in version 1",
        cgroups: &[(V1, "/system.slice/backup.service/kubepods-podU_ID.slice:cri-containerd:ID")],
        given: &[(V1, "/system.slice/backup.service")],
        refused: NOT_ROOTS,
        ..PLAIN
    },
    Variation {
        what: "the kubelet's directories in a service that runs as the user",
        cgroups: &[(V2, "/system.slice/backup.service/kubepods/podUID/ID")],
        given: &[(V2, "/system.slice/backup.service")],
        refused: ELSEWHERE,
        ..PLAIN
    },
    Variation {
        what: "a pod's directory that is not root's",
        cgroups: &[(V2, CGROUPFS)],
        given: &[(V2, "/kubepods/burstable/podUID")],
        refused: NOT_ROOTS,
        ..PLAIN
    },
    Variation {
        what: "a pod's directory below another pod's",
        cgroups: &[(V2, "/kubepods/pod00000000-0000-0000-0000-000000000000/ID/podUID")],
        given: &[(V2, "/kubepods/pod00000000-0000-0000-0000-000000000000/ID")],
        refused: NESTED,
        ..PLAIN
    },
    Variation {
        what: "a whole kubelet below another pod",
        cgroups: &[(V2, "/kubepods/pod00000000-0000-0000-0000-000000000000/ID/kubelet/kubepods/burstable/podUID/ID")],
        given: &[(V2, "/kubepods/pod00000000-0000-0000-0000-000000000000/ID")],
        refused: NESTED,
        ..PLAIN
    },
    Variation {
        what: "another cgroup root than any of the kubelet's",
        cgroups: &[(V2, "/lunch/kubepods/burstable/podUID/ID")],
        refused: ELSEWHERE,
        ..PLAIN
    },
    Variation {
        what: "one pod in one hierarchy, another in the other",
        cgroups: &[(V2, CGROUPFS), (V1, "/kubepods/pod00000000-0000-0000-0000-000000000000/ID")],
        refused: Some("different pods"),
        ..PLAIN
    },
    Variation {
        what: "a network of a user's own, in the right cgroup",
        cgroups: &[(V2, CGROUPFS)],
        network: Network::User,
        refused: Some("does not say hostUsers: false"),
        ..PLAIN
    },
    Variation {
        what: "a network of a user's own, where the pod has a user namespace",
        cgroups: &[(V2, CGROUPFS)],
        network: Network::User,
        host_users: false,
        refused: Some("that user 4242 made"),
        ..PLAIN
    },
    Variation {
        what: "a network of another user namespace, where the pod has none",
        cgroups: &[(V2, CGROUPFS)],
        network: Network::Runtime,
        refused: Some("does not say hostUsers: false"),
        ..PLAIN
    },
    Variation {
        what: "a network that was made inside the pod",
        cgroups: &[(V2, CGROUPFS)],
        network: Network::Inner,
        host_users: false,
        refused: Some("was made inside the pod"),
        ..PLAIN
    },
    Variation {
        what: "a process that visits another pod's network",
        cgroups: &[(V2, SYSTEMD)],
        network: Network::Other,
        refused: Some("none of the pod's addresses"),
        ..PLAIN
    },
    Variation {
        what: "a name that is not quite in its place",
        cgroups: &[(
            V2,
            "/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-podU_ID.slice/cri-containerd-ID.scope",
        )],
        refused: ELSEWHERE,
        ..PLAIN
    },
];

/// A pod of the test: all hexadecimal digits of its uid tell its number.
struct Pod {
    uid: String,
    address: IpAddr,
}

impl Pod {
    fn new(number: usize) -> Self {
        let uid = format!("{:08x}-1111-2222-3333-{number:012x}", number + 1);
        Pod { uid, address: Ipv4Addr::new(10, 77, 0, u8::try_from(number + 1).unwrap()).into() }
    }

    fn in_path(&self, path: &str) -> String {
        path.replace("U_ID", &self.uid.replace('-', "_"))
            .replace("podUID", &format!("pod{}", self.uid))
            .replace("ID", CONTAINER)
    }
}

/// The process of a variation, and the network it is in.
fn launch<'a>(
    container: &'a Container,
    variation: &Variation,
    pod: &Pod,
    own: &PodNetns,
    other: &PodNetns,
) -> (Process<'a>, Netns) {
    let cgroups: Vec<(&str, String)> = variation.cgroups.iter().map(|(h, path)| (*h, pod.in_path(path))).collect();
    let cgroups: Vec<(&str, &str)> = cgroups.iter().map(|(h, path)| (*h, path.as_str())).collect();
    for (hierarchy, path) in &cgroups {
        container.make_cgroup(hierarchy, path);
    }
    for (hierarchy, path) in variation.given {
        container.delegate(hierarchy, &pod.in_path(path), USER);
    }
    let (netns, script) = match variation.network {
        Network::Pod => (Some(own.path()), "exec sleep 100000".to_owned()),
        Network::Other => (Some(other.path()), "exec sleep 100000".to_owned()),
        Network::Runtime => (None, "exec unshare --user --net sleep 100000".to_owned()),
        Network::User => (None, format!("exec {UNPRIVILEGED} sleep 100000")),
        Network::Inner => {
            (None, "exec unshare --user --map-root-user --net unshare --user --net sleep 100000".to_owned())
        }
    };
    let process = container.run(&cgroups, netns, &script, &[]);
    process.wait_for(variation.what, "sleep");
    let netns = process.netns();
    if netns.id() != own.netns().id() && netns.id() != other.netns().id() {
        if !matches!(variation.network, Network::Inner) {
            process.map_users(super::POD_USERS);
        }
        netns.enter(|| add_address("lo", pod.address, 32)).unwrap().unwrap();
    }
    (process, netns)
}

fn find(container: &Container, roots: &str, wanted: &[Wanted]) -> Findings {
    let (root, cgroup_roots) = (HostRoot::new(container.root()), CgroupRoots::parse(roots).unwrap());
    let processes = Processes { root: &root, cgroup_roots: &cgroup_roots, host: Netns::own().unwrap().id() };
    processes.find(wanted, &BTreeSet::new()).unwrap()
}

#[test]
fn every_driver_and_runtime_is_known_and_every_claim_refused() {
    let container = Container::new();
    let other = netns("10.78.0.1");
    let pods: Vec<Pod> = (0..VARIATIONS.len()).map(Pod::new).collect();
    let networks: Vec<PodNetns> = pods.iter().map(|pod| netns(&pod.address.to_string())).collect();
    let launched = VARIATIONS.iter().zip(&pods).zip(&networks);
    let launched: Vec<(Process<'_>, Netns)> =
        launched.map(|((variation, pod), own)| launch(&container, variation, pod, own, &other)).collect();
    let wanted: Vec<Wanted> = VARIATIONS
        .iter()
        .zip(&pods)
        .map(|(variation, pod)| Wanted {
            uid: pod.uid.clone(),
            alias: None,
            ips: vec![pod.address],
            own_users: !variation.host_users,
        })
        .collect();
    let findings = find(&container, "/,/kubelet,/tenants/a-b", &wanted);
    for ((variation, pod), (_, netns)) in VARIATIONS.iter().zip(&pods).zip(&launched) {
        let what = variation.what;
        let found = findings.found.get(&pod.uid).map(Netns::id);
        let refused: Vec<String> =
            findings.refused.get(&pod.uid).into_iter().flatten().map(ToString::to_string).collect();
        match variation.refused {
            None => {
                assert_eq!(found, Some(netns.id()), "{what}: {refused:?}");
                assert!(refused.is_empty(), "{what}: {refused:?}");
            }
            Some(why) => {
                assert_eq!(found, None, "{what}");
                assert!(refused.len() == 1 && refused[0].contains(why), "{what}: {refused:?}");
            }
        }
    }
}

/// The container's own directory is then a part of every path, as kind has it on a machine with version 1 alone.
#[test]
fn a_node_that_sees_the_machines_hierarchies_has_its_pods_below_its_own() {
    let container = Container::without_cgroup_namespace();
    let pods = [Pod::new(0), Pod::new(1)];
    let networks = [netns("10.77.0.1"), netns("10.77.0.2")];
    let inside = [(V1, pods[0].in_path("/kubelet/kubepods/burstable/podUID/ID"))];
    // Beside that directory, where another container of the machine may be.
    let beside = [(V1, pods[1].in_path("/lunch/kubepods/burstable/podUID/ID"))];
    let run = |cgroups: &[(&'static str, String)], netns: &PodNetns| {
        let cgroups: Vec<(&str, &str)> = cgroups.iter().map(|(h, path)| (*h, path.as_str())).collect();
        let process = container.run(&cgroups, Some(netns.path()), "exec sleep 100000", &[]);
        process.wait_for("a process", "sleep");
        process
    };
    let _processes = [run(&inside, &networks[0]), run(&beside, &networks[1])];
    let wanted = pods.each_ref().map(|pod| Wanted {
        uid: pod.uid.clone(),
        alias: None,
        ips: vec![pod.address],
        own_users: false,
    });
    let findings = find(&container, "/,/kubelet", &wanted);
    assert_eq!(findings.found[&pods[0].uid].id(), networks[0].netns().id());
    assert!(!findings.found.contains_key(&pods[1].uid));
    assert!(findings.refused[&pods[1].uid][0].to_string().contains("not where a kubelet puts a pod"));
    // Above the container nothing is known to be the kubelet's.
    let container_only = find(&container, "/tenants", &wanted);
    assert!(container_only.found.is_empty() && container_only.refused.len() == 2, "{container_only:?}");
}
