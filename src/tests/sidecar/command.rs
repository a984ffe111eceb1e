//! `istio-iptables`: as an init container runs it, and as a person does.

use crate::support::netns::{Backend, PodNetns, iptables_save, nft_list, run_in};
use crate::support::program::{Finished, ferrule, ferrule_as, finish, istio_validation};
use ferrule::rules::family::Family;
use std::io::Write;
use std::net::TcpListener;

/// What the injector gives istio-init.
const INIT: [&str; 17] = [
    "-p",
    "15001",
    "-z",
    "15006",
    "-u",
    "1337",
    "-m",
    "REDIRECT",
    "-i",
    "*",
    "-x",
    "",
    "-b",
    "*",
    "-d",
    "15090,15021,15020",
    "--log_output_level=default:info",
];

/// A pod with these addresses.
fn pod(addresses: &[&str]) -> PodNetns {
    let pod = PodNetns::new();
    run_in(pod.netns(), "sh", &["-ec", "ip link add eth0 type veth peer name eth1; ip link set eth0 up"]);
    for address in addresses {
        let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        run_in(pod.netns(), "ip", &[&["addr", "add", address, "dev", "eth0"], nodad].concat());
    }
    pod
}

const V4: &str = "10.0.0.2/24";
const V6: &str = "fd00::2/64";

fn run(pod: &PodNetns, args: &[&str]) -> Finished {
    pod.enter(|| finish(&mut ferrule_as("istio-iptables", args), b""))
}

#[track_caller]
fn works(pod: &PodNetns, args: &[&str]) -> Finished {
    let run = run(pod, args);
    assert_eq!(run.code, Some(0), "{args:?}: {run:?}");
    run
}

fn save(pod: &PodNetns, family: Family) -> String {
    Backend::ALL.map(|backend| iptables_save(pod.netns(), backend, family)).concat()
}

fn validate(pod: &PodNetns, args: &[&str]) -> Finished {
    pod.enter(|| finish(&mut istio_validation(args), b""))
}

#[track_caller]
fn refused(pod: &PodNetns, args: &[&str], reason: &str) {
    let run = validate(pod, args);
    assert_eq!(run.code, Some(126), "{run:?}");
    assert!(run.stderr.contains(reason) && run.stderr.contains("recreate the pod"), "{reason}: {}", run.stderr);
}

#[test]
fn applied_twice_dry_and_cleaned_up() {
    let pod = pod(&[V4]);
    let dry = works(&pod, &[&INIT[..], &["-n"]].concat()).stdout;
    assert!(dry.starts_with("# ipv4\n*nat\n") && dry.ends_with("COMMIT\n") && !dry.contains("ipv6"), "{dry}");
    assert_eq!(save(&pod, Family::V4), "", "a dry run touches nothing");
    works(&pod, &INIT);
    let applied = save(&pod, Family::V4);
    for line in dry.lines().filter(|line| line.starts_with("-A")) {
        assert!(applied.contains(line), "{line}: {applied}");
    }
    assert_eq!(save(&pod, Family::V6), "");
    let again = works(&pod, &INIT);
    assert!(again.stderr.contains("as it was"), "{}", again.stderr);
    assert_eq!(save(&pod, Family::V4), applied);
    let preview = works(&pod, &["--cleanup-only", "--dry-run"]).stdout;
    assert!(preview.contains("-D OUTPUT -j ISTIO_OUTPUT\n") && preview.contains("-X ISTIO_OUTPUT\n"), "{preview}");
    assert_eq!(save(&pod, Family::V4), applied);
    works(&pod, &["--cleanup-only"]);
    assert!(!save(&pod, Family::V4).contains("ISTIO"));
    works(&pod, &["--cleanup-only"]);
}

#[test]
fn native_nftables_applied_twice_dry_and_cleaned_up() {
    let pod = pod(&[V4, V6]);
    let native = |more: &[&str]| works(&pod, &[&INIT[..], &["--native-nftables", "--dual-stack"], more].concat());
    let dry = native(&["-n"]).stdout;
    assert!(dry.starts_with("add table inet istio-proxy-nat\n") && dry.contains("ip6 daddr ::1"), "{dry}");
    assert_eq!(nft_list(pod.netns()), "", "a dry run touches nothing");
    works(&pod, &INIT);
    native(&[]);
    let applied = nft_list(pod.netns());
    assert!(applied.contains("table inet istio-proxy-nat {"), "{applied}");
    let left = native(&[]);
    assert!(left.stderr.contains("as it was") && left.stderr.contains("--reconcile takes it out"), "{}", left.stderr);
    native(&["--reconcile"]);
    assert!(!save(&pod, Family::V4).contains("ISTIO"), "what iptables left is gone");
    assert_eq!(validate(&pod, &[]).code, Some(0), "and traffic is redirected");
    let again = native(&["--reconcile"]);
    assert!(again.stderr.contains("as it was") && !again.stderr.contains("warn"), "{}", again.stderr);
    let preview = works(&pod, &["--native-nftables", "--cleanup-only", "--dry-run"]).stdout;
    assert_eq!(preview, "# nft\ndelete table inet istio-proxy-nat\n");
    // Whichever backend is asked to.
    works(&pod, &["--cleanup-only"]);
    assert!(!nft_list(pod.netns()).contains("istio"));
}

/// Istio's native tables are of both families: IPv6 leaves through Envoy whatever address the pod has first.
#[test]
fn native_nftables_redirects_ipv6_whatever_address_comes_first() {
    let check = |addresses: &[&str], more: &[&str], expected: bool| {
        let pod = pod(addresses);
        works(&pod, &[&INIT[..], more].concat());
        let rules = nft_list(pod.netns()) + &save(&pod, Family::V6);
        let v6 = rules.contains("ip6 daddr ::1") || rules.contains("-d ::1/128");
        assert_eq!(v6, expected, "{addresses:?} {more:?}: {rules}");
    };
    check(&[V4, V6], &["--native-nftables"], true);
    check(&[V6, V4], &["--native-nftables"], true);
    check(&[V4], &["--native-nftables"], false);
    // With iptables, Istio's programs for IPv6 are run only where the first address is IPv6 or the flag is given.
    check(&[V4, V6], &[], false);
    check(&[V6], &[], true);
    check(&[V4, V6], &["--dual-stack"], true);
}

#[test]
fn rules_that_look_right_are_written_again_if_that_is_asked_for() {
    for backend in ["--force-iptables-binary=nft", "--force-iptables-binary=legacy", "--native-nftables"] {
        let pod = pod(&[V4]);
        works(&pod, &[&INIT[..], &[backend]].concat());
        let state = || save(&pod, Family::V4) + &run_in(pod.netns(), "nft", &["-s", "list", "ruleset"]);
        // The kernel gives every rule that is written a new number.
        let handles = || run_in(pod.netns(), "nft", &["-a", "-s", "list", "ruleset"]);
        let (before, numbers) = (state(), handles());
        let again = works(&pod, &[&INIT[..], &[backend]].concat());
        assert!(again.stderr.contains("as it was") && handles() == numbers, "{}", again.stderr);
        let forced = works(&pod, &[&INIT[..], &[backend, "--force-apply"]].concat());
        assert!(forced.stderr.contains("is in place") && !forced.stderr.contains("as it was"), "{}", forced.stderr);
        assert_eq!(state(), before, "and none twice");
        assert_eq!(handles() == numbers, backend.ends_with("legacy"), "{backend}");
    }
}

#[test]
fn other_settings_with_and_without_reconcile() {
    let pod = pod(&[V4]);
    works(&pod, &["-b", "*", "-i", "*", "-c", "eth7"]);
    let run = works(&pod, &["-b", "*", "-i", "*"]);
    assert!(run.stderr.contains("warn") && run.stderr.contains("--reconcile takes it out"), "{}", run.stderr);
    assert!(save(&pod, Family::V4).contains("eth7"));
    let run = works(&pod, &["-b", "*", "-i", "*", "--reconcile"]);
    assert!(!run.stderr.contains("warn"), "{}", run.stderr);
    assert!(!save(&pod, Family::V4).contains("eth7"));
}

#[test]
fn families_namespaces_and_variables() {
    let args = ["-b", "*", "-i", "*"];
    let check = |addresses: &[&str], variables: &[(&str, &str)], want: (bool, bool)| {
        let pod = pod(addresses);
        let run = pod.enter(|| finish(ferrule_as("istio-iptables", &args).envs(variables.iter().copied()), b""));
        assert_eq!(run.code, Some(0), "{run:?}");
        let has = |family| save(&pod, family).contains("ISTIO_OUTPUT");
        assert_eq!((has(Family::V4), has(Family::V6)), want, "{addresses:?}");
    };
    check(&[V4, V6], &[], (true, false));
    check(&[V4, V6], &[("ISTIO_DUAL_STACK", "true")], (true, true));
    check(&[V6], &[], (true, true));
    check(&[V4], &[("ISTIO_DUAL_STACK", "true")], (true, false));

    // From outside, by path.
    let there = pod(&[V4]);
    let here = pod(&[]);
    works(&here, &[&args[..], &["--network-namespace", there.path().to_str().unwrap()]].concat());
    assert!(save(&there, Family::V4).contains("ISTIO_OUTPUT") && save(&here, Family::V4).is_empty());
    let run = run(&here, &["--network-namespace", "/no/such"]);
    assert!(run.code == Some(1) && run.stderr.contains("--network-namespace: open /no/such"), "{run:?}");
}

#[test]
fn wrong_input_is_a_usage_error_and_unknown_names_are_errors() {
    let pod = pod(&[V4]);
    for (args, text) in [
        (&["-b", "http"][..], "option --istio-inbound-ports: \"http\" is not allowed; expected * or ports"),
        (&["-y"], "unknown option -y"),
        (&["--reconcil"], "did you mean --reconcile?"),
        (&["extra"], "unexpected argument \"extra\""),
    ] {
        let run = run(&pod, args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(run.stderr.contains(text), "{args:?}: {}", run.stderr);
    }
    let mut command = ferrule(&["iptables", "--dry-run"]);
    let run = pod.enter(|| finish(command.env("ISTIO_OUTBOUND_OWNER_GROUPS", "no-such-group"), b""));
    assert!(run.code == Some(1) && run.stderr.contains("group \"no-such-group\" is not in /etc/group"), "{run:?}");
    let mut command = ferrule(&["iptables", "--dry-run"]);
    let run =
        pod.enter(|| finish(command.env("ISTIO_OUTBOUND_OWNER_GROUPS", "root,7").env("ENVOY_USER", "daemon"), b""));
    assert!(run.stdout.contains("-m owner ! --gid-owner 0 -m owner ! --gid-owner 7 -j RETURN"), "{run:?}");
    assert!(run.stdout.contains("--uid-owner 1 ") && run.stdout.contains("--gid-owner 1 "), "{run:?}");
}

#[test]
fn validation_passes_on_right_rules_only() {
    for tproxy in [&[][..], &["-m", "TPROXY"]] {
        let both = pod(&[V4, V6]);
        let dual = ["--dual-stack"];
        refused(&both, &dual, "IPv4 is not redirected");
        works(&both, &[&INIT[..], tproxy, &dual].concat());
        for args in [&dual[..], &[]] {
            let run = validate(&both, args);
            assert_eq!(run.code, Some(0), "{run:?}");
        }
    }
    let v6 = pod(&[V6]);
    refused(&v6, &[], "IPv6 is not redirected");
    works(&v6, &INIT);
    assert_eq!(validate(&v6, &[]).code, Some(0));
    // What counts as loopback does not matter.
    let pod = pod(&[V4]);
    let mut wide = ferrule_as("istio-iptables", &INIT);
    assert_eq!(pod.enter(|| finish(wide.env("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.0/8"), b"")).code, Some(0));
    refused(&pod, &[], "connection");
}

#[test]
fn validation_fails_on_rules_to_another_port_and_on_one_family_only() {
    let other = pod(&[V4]);
    works(&other, &["-b", "*", "-i", "*", "-z", "15016"]);
    refused(&other, &[], "nothing redirects a connection");
    // Even if somebody answers there.
    let _listener = other.enter(|| serve("0.0.0.0:15016"));
    refused(&other, &[], "was answered by somebody else");
    assert_eq!(validate(&other, &["-z", "15017"]).code, Some(126));

    let half = pod(&[V4, V6]);
    works(&half, &INIT);
    assert_eq!(validate(&half, &[]).code, Some(0));
    refused(&half, &["--dual-stack"], "IPv6 is not redirected");
    let half = pod(&[V4, V6]);
    works(&half, &[&INIT[..], &["--dual-stack"]].concat());
    run_in(half.netns(), "sh", &["-ec", "for b in nft legacy; do iptables-$b -t nat -F OUTPUT; done"]);
    refused(&half, &["--dual-stack"], "IPv4 is not redirected");
}

#[test]
fn validation_is_not_fooled_by_somebody_who_answers() {
    let pod = pod(&[V4]);
    {
        // At the address that is asked, where nothing is redirected.
        let _listener = pod.enter(|| serve("0.0.0.0:15002"));
        refused(&pod, &[], "was answered by somebody else");
        works(&pod, &INIT);
        assert_eq!(validate(&pod, &[]).code, Some(0), "redirected, it does not get there");
    }
    // Where Envoy should listen.
    let _listener = pod.enter(|| serve("0.0.0.0:15006"));
    refused(&pod, &[], "somebody else has the port");
}

#[test]
fn validation_waits_for_rules_that_are_still_coming() {
    let pod = pod(&[V4]);
    std::thread::scope(|scope| {
        let validation = scope.spawn(|| validate(&pod, &["--probe-timeout=10s"]));
        works(&pod, &INIT);
        assert_eq!(validation.join().unwrap().code, Some(0));
    });
}

/// Answers everybody, until the process ends.
fn serve(address: &str) -> TcpListener {
    let listener = TcpListener::bind(address).unwrap();
    let ours = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        for mut client in ours.incoming().flatten() {
            let _ = client.write_all(b"hello");
        }
    });
    listener
}

#[test]
fn wait_for_a_url() {
    let pod = pod(&[V4]);
    let wait = |args: &[&str]| pod.enter(|| finish(&mut ferrule(&[&["wait"], args].concat()), b""));
    let run =
        wait(&["--url", "http://localhost:15020/healthz/ready", "--timeout-seconds", "1", "--period-millis", "100"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("http://localhost:15020/healthz/ready was not ready in 1 s: connect to"), "{run:?}");
    assert_eq!(wait(&["--url", "https://localhost/"]).code, Some(2));

    let listener = pod.enter(|| TcpListener::bind("127.0.0.1:15020").unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for status in ["503 Service Unavailable", "200 OK"] {
                let (mut client, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let len = std::io::Read::read(&mut client, &mut request).unwrap();
                assert!(
                    String::from_utf8_lossy(&request[..len])
                        .starts_with("GET /healthz/ready HTTP/1.1\r\nHost: localhost")
                );
                write!(client, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
        });
        let run = wait(&["--url", "http://localhost:15020/healthz/ready", "--period-millis", "10"]);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    });
}
