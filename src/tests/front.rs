//! The executable from outside: usage texts, wrong input, personalities, and the rules command.

use crate::support::program::{Finished, ferrule, ferrule_as, finish};
use ferrule::config::table::TABLE;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/test-fixtures/config");

fn run(args: &[&str], variables: &[(&str, &str)]) -> Finished {
    finish(ferrule(args).envs(variables.iter().copied()), b"")
}

/// Compares with a file; `UPDATE_FIXTURES=1` writes it instead, for the difference to be reviewed.
#[track_caller]
fn same_as_fixture(name: &str, text: &str) {
    let path = Path::new(FIXTURES).join(name);
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{name} (UPDATE_FIXTURES=1 rewrites it)");
}

#[test]
fn help_lists_every_option_with_its_variable_and_default() {
    for command in ["agent", "rules", "explain", "doctor", "uninstall"] {
        let help = run(&[command, "--help"], &[]);
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
        for row in TABLE {
            let spec = row.spec;
            let mut lines = help.stdout.lines();
            if let Some(flag) = spec.name.flag() {
                let ours = |line: &&str| line.split([' ', '[']).any(|word| word == format!("--{flag}"));
                lines.find(ours).unwrap_or_else(|| panic!("{command}: no --{flag}"));
            } else {
                let name = spec.name.variable().unwrap();
                assert!(help.stdout.contains(&format!("variable {name},")), "{command}: no {name}");
                continue;
            }
            let notes = lines.next().unwrap();
            let variable = spec.name.variable().map_or(String::new(), |name| format!("variable {name}, "));
            let default = if spec.default.is_empty() { "no default" } else { &format!("default {}", spec.default) };
            assert_eq!(notes.trim(), format!("[{variable}{default}]"), "{command}");
        }
    }
    same_as_fixture("agent-help.txt", &run(&["agent", "--help"], &[]).stdout);
    same_as_fixture("help.txt", &run(&["--help"], &[]).stdout);
    // Help wins over whatever else is wrong.
    assert_eq!(run(&["agent", "--verify-interval=x", "--help"], &[("AMBIENT_IPV6", "x")]).code, Some(0));
    let plugin = run(&["cni", "--help"], &[]);
    assert!(plugin.code == Some(0) && plugin.stdout.contains("CNI_COMMAND"), "{plugin:?}");
}

#[test]
fn version_is_one_line() {
    for args in [["version"], ["--version"], ["-V"]] {
        let version = run(&args, &[]);
        assert_eq!(version.code, Some(0));
        assert_eq!(version.stdout, format!("ferrule {}\n", env!("CARGO_PKG_VERSION")));
    }
}

#[test]
fn unknown_options_and_commands_are_usage_errors_that_name_the_nearest() {
    let check = |args: &[&str], want: &str| {
        let got = run(args, &[]);
        assert_eq!((got.code, got.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert_eq!(got.stderr.trim_end(), format!("ferrule: {want}"), "{args:?}");
    };
    check(
        &["agent", "--ambient-enable"],
        "unknown option --ambient-enable (did you mean --ambient-enabled?); --help lists all",
    );
    check(
        &["agent", "--log-output-level=info"],
        "unknown option --log-output-level (did you mean --log_output_level?); --help lists all",
    );
    check(&["rules", "--famly", "ipv4"], "unknown option --famly (did you mean --family?); --help lists all");
    check(&["agent", "--family=ipv4"], "unknown option --family; --help lists all");
    check(&["status", "--jsno"], "unknown option --jsno (did you mean --json?); --help lists all");
    check(&["docter"], "unknown command \"docter\" (did you mean doctor?); ferrule --help lists the commands");
    check(&["agent", "-x"], "unknown option -x; --help lists all");
    check(&["agent", "more"], "unexpected argument \"more\"; agent --help lists the options");
    check(&["aget"], "unknown command \"aget\" (did you mean agent?); ferrule --help lists the commands");
    check(&["frobnicate"], "unknown command \"frobnicate\"; ferrule --help lists the commands");
    check(&[], "no command; ferrule --help lists the commands");
    check(&["agent", "--cni-conf-name"], "missing argument for option '--cni-conf-name'");
    check(&["rules"], "rules takes one POD_FILE, or --host; rules --help says more");
    check(
        &["rules", "default/web"],
        "rules takes a POD_FILE: the pod \"default/web\" is no file; write its object into one, or try explain",
    );
    check(&["rules", "--host", "a.yaml"], "rules takes one POD_FILE, or --host; rules --help says more");
}

#[test]
fn bad_values_name_option_value_and_what_is_allowed() {
    for (flag, bad, allowed) in [
        ("ambient-enabled", "yes", "true or false (also 1, t, T, TRUE, True, 0, f, F, FALSE, False)"),
        ("kubeconfig-mode", "rw", "a file mode up to 0777, octal as 0600 or 0o600, or decimal as 384"),
        ("verify-interval", "30", "a duration as 30s, 1m30s or 500ms (units h, m, s, ms), up to 8760h, or 0"),
        ("monitoring-port", "65536", "a port from 1 to 65535, or 0 for off"),
        ("health-port", "http", "a port from 1 to 65535, or 0 for off"),
        ("host-root", "host", "an absolute path"),
        ("mounted-cni-net-dir", "net.d", "an absolute path, or one below {host-root}"),
        ("cni-conf-name", "/etc/cni/net.d/10.conflist", "a file name without directory"),
        ("pod-source", "directory:/pods", "kubernetes, or dir:PATH with an absolute path"),
        ("log_output_level", "default:loud", "a level, or a list of scope:level (level \"loud\" in"),
        ("ambient-enablement-selector", "[{podSelectors: {}}]", "a YAML list of {podSelector, namespaceSelector} ("),
        ("exclude-namespaces", "a b", "names of namespaces, separated by commas; \"a b\" cannot be one"),
        ("repair-init-container-exit-code", "256", "an exit code from 0 to 255"),
    ] {
        let variable = flag.to_uppercase().replace('-', "_");
        for (got, origin) in [
            (run(&["agent", &format!("--{flag}={bad}")], &[]), format!("option --{flag}")),
            (run(&["agent"], &[(&variable, bad)]), format!("environment variable {variable}")),
            (run(&["rules", "--host"], &[(&variable, bad)]), format!("environment variable {variable}")),
        ] {
            let want = format!("ferrule: {origin}: {bad:?} is not allowed; expected {allowed}");
            assert_eq!((got.code, got.stdout.as_str()), (Some(2), ""), "{origin}");
            assert!(got.stderr.starts_with(&want), "{origin}: {}", got.stderr);
            assert_eq!(got.stderr.lines().count(), 1, "{origin}: {}", got.stderr);
        }
    }
    for (variable, bad, allowed) in [
        ("HOST_PROBE_SNAT_IP", "fd00::1", "an IPv4 address"),
        ("HOST_PROBE_SNAT_IPV6", "169.254.7.127", "an IPv6 address"),
        ("FORCE_IPTABLES_BINARY", "iptables-nft", "legacy or nft"),
        ("ALLOW_SWITCH_TO_HOST_NS", "on", "true or false"),
    ] {
        let got = run(&["agent"], &[(variable, bad)]);
        let want = format!("ferrule: environment variable {variable}: {bad:?} is not allowed; expected {allowed}");
        assert!(got.code == Some(2) && got.stderr.starts_with(&want), "{got:?}");
    }
    let owned = run(&["agent", "--istio-owned-cni-config"], &[]);
    assert!(owned.code == Some(2) && owned.stderr.contains("needs --chained-cni-plugin and --ambient-enabled"));
}

#[test]
fn the_name_the_first_argument_and_the_runtime_decide_what_it_is() {
    let plugin = |finished: Finished| finished.stdout.contains("\"supportedVersions\"");
    let version = ("CNI_COMMAND", "VERSION");
    let input = b"{\"cniVersion\":\"1.0.0\"}";
    assert!(plugin(finish(ferrule_as("/opt/cni/bin/istio-cni", &[]).envs([version]), input)));
    assert!(plugin(finish(ferrule_as("istio-cni", &["agent", "--nonsense"]).envs([version]), input)));
    assert!(plugin(finish(ferrule(&["cni"]).envs([version]), input)));
    assert!(plugin(finish(ferrule(&[]).envs([version]), input)));
    // An explicit command wins over the variable, the name over the command.
    let named = finish(ferrule(&["version"]).envs([version]), input);
    assert_eq!(named.stdout, format!("ferrule {}\n", env!("CARGO_PKG_VERSION")));
    let agent = finish(ferrule_as("/usr/local/bin/install-cni", &["--help"]).envs([version]), b"");
    assert!(agent.stdout.starts_with("Usage: ferrule agent"), "{}", agent.stdout);
    let about = finish(&mut ferrule_as("istio-cni", &[]), b"");
    assert_eq!((about.code, about.stdout.as_str()), (Some(0), ""));
    assert!(about.stderr.contains("1.1.0"), "{}", about.stderr);
}

#[test]
fn rules_of_pods_and_host() {
    let on = ("AMBIENT_ENABLED", "true");
    let selector = include_str!("../../test-fixtures/pod/chart-selectors.yaml");
    let all = [on, ("AMBIENT_ENABLEMENT_SELECTOR", selector), ("AMBIENT_IPV6", "true"), ("AMBIENT_DNS_CAPTURE", "1")];
    let pod = format!("{FIXTURES}/pod-in-mesh.yaml");

    let got = run(&["rules", &pod], &all);
    assert_eq!(got.code, Some(0), "{}", got.stderr);
    assert_eq!(
        got.stderr,
        "ferrule: warning: annotation istio.io/reroute-virtual-interfaces: \"not/one\" is not the name of a network \
         interface; ignored\n"
    );
    same_as_fixture("rules-pod.txt", &got.stdout);
    let v4 = run(&["rules", "--family", "ipv4", &pod], &all).stdout;
    let v6 = run(&["rules", "--family=ipv6", &pod], &all).stdout;
    assert_eq!(got.stdout, format!("# ipv4\n{v4}# ipv6\n{v6}"));

    let host = run(&["rules", "--host", "--ambient-enabled"], &[]);
    assert_eq!((host.code, host.stderr.as_str()), (Some(0), ""));
    same_as_fixture("rules-host.txt", &host.stdout);

    let nftables = |args: &[&str]| run(&[&["rules", "--backend=nftables"], args].concat(), &all).stdout;
    same_as_fixture("rules-pod.nft", &nftables(&[&pod]));
    same_as_fixture("rules-host.nft", &nftables(&["--host"]));
    assert!(!nftables(&["--family=ipv4", &pod]).contains("ip6"));

    let refused = |args: &[&str], variables: &[(&str, &str)], want: &str| {
        let got = run(&[&["rules"], args].concat(), variables);
        assert_eq!((got.code, got.stdout.as_str()), (Some(1), ""), "{args:?}");
        assert!(got.stderr.contains(want), "{args:?}: {}", got.stderr);
    };
    refused(&["--host"], &[], "no rules apply to the host: ambient mode is off (--ambient-enabled)");
    refused(&["--host", "--family", "ipv6"], &[on], "no IPv6 rules apply: IPv6 is off (--ambient-ipv6)");
    refused(&[&pod], &all[..1], "pod team-a/web: no rules apply: there is no enablement selector");
    refused(&["--exclude-namespaces=team-a", &pod], &all, "namespace team-a is excluded (--exclude-namespaces)");
    refused(&["/nowhere/pod.yaml"], &all, "/nowhere/pod.yaml");
    let list = concat!(env!("CARGO_MANIFEST_DIR"), "/test-fixtures/pod/documents.yaml");
    let two = "documents.yaml: one Pod is needed, and there are 2: default/short, team-a/static";
    refused(&[list], &all, two);

    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let sidecar = "kind: Pod\nmetadata: {name: s, annotations: {sidecar.istio.io/status: ''}}\n\
                   spec: {containers: [{name: istio-proxy}]}\n";
    let got = run(&["rules", &file("sidecar.yaml", sidecar)], &[]);
    assert!(got.code == Some(0) && got.stdout.starts_with("# ipv4\n*"), "{got:?}");
    assert!(got.stdout.contains("ISTIO_INBOUND") && !got.stdout.contains("ISTIO_PRERT"), "{got:?}");
    refused(&[&file("half.yaml", "kind: Pod\nmetadata: {name: ")], &[], "half.yaml: not YAML: ");
    refused(&[&file("nameless.json", "{\"kind\":\"Pod\",\"metadata\":{}}")], &[], "has no metadata.name");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = ferrule(&["agent", "--help"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_service_of_that_name_is_a_warning() {
    let got = run(&["rules", "--host", "--ambient-enabled"], &[("HEALTH_PORT", "tcp://10.96.0.9:8000")]);
    assert_eq!(got.code, Some(0));
    assert!(got.stderr.contains("warning: environment variable HEALTH_PORT=tcp://10.96.0.9:8000 is ignored"));
}
