//! What runs in a pod's network while its rules are written, and what somebody who is all-powerful in the pod's user
//! namespace can do to it: nothing. He tries it on a program that has entered that user namespace, too, where he can.

use super::{POD_USERS, UNPRIVILEGED};
use crate::support::container::{Container, Process};
use crate::support::engine::options;
use crate::support::eventually;
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::inpod::{Applied, InPod};
use ferrule::dataplane::xtables::variant::Variant;
use ferrule::rules::inpod::Settings;
use ferrule::rules::program::Program;
use ferrule::rules::sidecar;
use ferrule::sys::netlink::set_link_up;
use ferrule::sys::netns::Netns;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command};

/// Everything that can be done to process `$1`; says what could.
const ATTACK: &str = r#"
timeout 0.3 strace -qq -o /dev/null -p $1 2>/dev/null; [ $? = 124 ] && echo traced
cat /proc/$1/root$2 2>/dev/null | grep -q secret && echo root
cat /proc/$1/environ >/dev/null 2>&1 && echo environment
ls /proc/$1/fd/ >/dev/null 2>&1 && echo files
kill -STOP $1 2>/dev/null && echo stopped && kill -CONT $1
true"#;
/// What whoever is root inside can do to a process there, and what whoever made the user namespace can.
const POSSIBLE: [&[&str]; 2] = [&["traced", "root", "environment", "files", "stopped"], &["traced", "root", "stopped"]];

/// Who tries: root in the user namespace, and the user who made it.
fn attackers(pod: &Process<'_>) -> [Command; 2] {
    let mut inside = Command::new("nsenter");
    for namespace in ["user", "net"] {
        inside.arg(format!("--{namespace}={}", pod.file(&format!("ns/{namespace}")).display()));
    }
    let mut maker = Command::new("setpriv");
    maker.args(["--reuid", "4242", "--regid", "4242", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
    [inside, maker]
}

/// What an attacker can do to a process, which has such a file in its root directory.
fn attack(mut who: Command, pid: u32, file: &Path) -> BTreeSet<String> {
    let out = who.args(["sh", "-c", ATTACK, "sh", &pid.to_string()]).arg(file).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A directory of programs in which the one that loads rules waits until it may, and leaves its number.
struct Slow {
    dir: tempfile::TempDir,
}

impl Slow {
    fn new(variant: Variant) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        for family in ["iptables", "ip6tables"] {
            for end in ["", "-save"] {
                let name = format!("{family}-{variant}{end}");
                symlink(format!("/usr/sbin/{name}"), dir.path().join(name)).unwrap();
            }
            let name = format!("{family}-{variant}-restore");
            let path = dir.path().join(&name);
            let at = dir.path().display();
            let script = format!(
                "#!/bin/sh\nif [ -e {at}/slow ]; then\n echo $$ >{at}/new.$$; mv {at}/new.$$ {at}/pid\n \
                 while [ -e {at}/slow ]; do sleep 0.01; done\nfi\nexec /usr/sbin/{name} \"$@\"\n"
            );
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
        Slow { dir }
    }

    fn pid(&self) -> Option<u32> {
        fs::read_to_string(self.dir.path().join("pid")).ok()?.trim().parse().ok()
    }

    /// From now on a program waits.
    fn hold(&self) {
        fs::write(self.dir.path().join("slow"), "").unwrap();
    }

    fn release(&self) {
        let _ = fs::remove_file(self.dir.path().join("slow"));
    }
}

/// A process that has entered a pod's user namespace and network, as one would that runs iptables there.
struct Joined(Child);

impl Joined {
    fn new(pod: &Process<'_>) -> Self {
        let [mut inside, _] = attackers(pod);
        let joined = Joined(inside.args(["sleep", "100000"]).spawn().unwrap());
        let comm = format!("/proc/{}/comm", joined.0.id());
        eventually("it has entered", || fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == "sleep"));
        joined
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ambient() -> Program {
    (&Settings {
        dns_capture: true,
        ingress_mode: false,
        reroute_interfaces: vec![],
        ipv6: true,
        probe_v4: [169, 254, 7, 127].into(),
        probe_v6: "fd16::1".parse().unwrap(),
    })
        .into()
}

#[test]
fn whoever_rules_a_pods_user_namespace_has_no_hold_on_what_writes_its_rules() {
    let container = Container::new();
    // He made it himself, which no search would let pass; a runtime's own is in the same position towards root inside.
    let pod = container.run(&[], None, &format!("exec {UNPRIVILEGED} sleep 100000"), &[]);
    pod.wait_for("the pod", "sleep");
    pod.map_users(POD_USERS);
    let netns = pod.netns();
    netns.enter(|| set_link_up("lo")).unwrap().unwrap();
    let secret = container.root().join("token");
    fs::write(&secret, "secret").unwrap();

    let joined = Joined::new(&pod);
    for (who, possible) in attackers(&pod).into_iter().zip(POSSIBLE) {
        let done = attack(who, joined.0.id(), &secret);
        assert_eq!(done, possible.iter().map(|what| (*what).to_owned()).collect(), "the attack is a real one");
    }

    for variant in Variant::ALL {
        let (slow, work) = (Slow::new(variant), tempfile::tempdir().unwrap());
        let options = ferrule::dataplane::inpod::Options {
            program_dir: Some(slow.dir.path().to_owned()),
            ..options(Backend::Iptables(variant), work.path())
        };
        let programmer = InPod::detect(options, &Netns::scratch().unwrap()).unwrap();
        // How the rules look is found out beforehand.
        programmer.check(&Netns::scratch().unwrap(), ambient()).unwrap();
        slow.hold();
        std::thread::scope(|scope| {
            let apply = scope.spawn(|| programmer.apply(&netns, ambient()));
            eventually("a program is about to load rules", || slow.pid().is_some() || apply.is_finished());
            let tried: Vec<_> = attackers(&pod)
                .into_iter()
                .filter_map(|who| {
                    Some((fs::metadata(format!("/proc/{}", slow.pid()?)).is_ok(), attack(who, slow.pid()?, &secret)))
                })
                .collect();
            slow.release();
            assert_eq!(apply.join().unwrap().unwrap(), Applied::Written, "{variant}");
            assert_eq!(tried, [(true, BTreeSet::new()), (true, BTreeSet::new())], "{variant}");
        });
        programmer.engine().remove(&netns, &ambient()).unwrap();

        // Rules that match owners are taken from iptables inside the user namespace only: no program is run at all.
        let sidecar = sidecar::program(&crate::sidecar::scene::plain(), true);
        fs::remove_file(slow.dir.path().join("pid")).unwrap();
        slow.hold();
        assert_eq!(programmer.apply(&netns, sidecar.clone()).unwrap(), Applied::Written, "{variant}");
        assert_eq!(slow.pid(), None, "{variant}");
        slow.release();
        programmer.engine().remove(&netns, &sidecar).unwrap();
    }
}
