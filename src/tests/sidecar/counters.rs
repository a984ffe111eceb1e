//! `rules --counters` shows what our rules have counted, with every backend.

use super::scene::{Scene, plain};
use crate::support::program::{ferrule, finish};
use ferrule::dataplane::backend::Backend;
use ferrule::dataplane::xtables::variant::Variant;

/// What is counted by a rule of which the text holds all these words.
#[track_caller]
fn packets(text: &str, words: &[&str]) -> u64 {
    let line = text.lines().find(|line| words.iter().all(|word| line.contains(word)));
    let line = line.unwrap_or_else(|| panic!("{words:?}: {text}"));
    line.trim_start_matches('[').split(':').next().unwrap().parse().unwrap()
}

fn counters(scene: &Scene) -> String {
    let shown = finish(&mut ferrule(&["rules", "--counters", scene.pod.path().to_str().unwrap()]), b"");
    assert_eq!(shown.code, Some(0), "{shown:?}");
    shown.stdout
}

#[test]
fn what_is_redirected_is_counted_by_every_backend() {
    let scene = Scene::new();
    assert_eq!(counters(&scene), "");
    scene.with_each(&plain(), false, |scene, backend| {
        let (out, inbound) = match backend {
            Backend::Nftables => (["istio-redirect 1 redirect"], ["istio-in-redirect 1 redirect"]),
            Backend::Iptables(_) => (["-A ISTIO_REDIRECT -p tcp"], ["-A ISTIO_IN_REDIRECT -p tcp"]),
        };
        let seen = |text: &str| [packets(text, &out), packets(text, &inbound)];
        let before = counters(scene);
        let title = match backend {
            Backend::Nftables => "# inet istio-proxy-nat",
            Backend::Iptables(Variant::Nft) => "# nft IPv4 nat",
            Backend::Iptables(Variant::Legacy) => "# legacy IPv4 nat",
        };
        assert!(before.contains(title), "{before}");
        assert_eq!(seen(&before), [0, 0], "{backend:?}");
        scene.app_asks("10.2.0.1:80");
        assert_eq!(seen(&counters(scene)), [1, 0], "{backend:?}");
        scene.world_asks("10.0.1.2:80");
        scene.world_asks("10.0.1.2:80");
        assert_eq!(seen(&counters(scene)), [1, 2], "{backend:?}");
    });
}
