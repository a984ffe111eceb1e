//! What is taken out of a namespace is ambient's own: proved by the rules, whatever the chains are called.

use super::pod::{VARIANTS, load, meaningful_nft, plain, pod, saved};
use crate::sidecar::scene;
use crate::support::engine::{BACKENDS, programmer};
use ferrule::dataplane::backend::Backend;
use ferrule::rules::sidecar::{Interception, Settings, program};
use ferrule::sys::netns::Netns;

fn all(netns: &Netns) -> Vec<String> {
    let mut all = meaningful_nft(netns);
    for variant in VARIANTS {
        all.extend(["iptables", "ip6tables"].iter().flat_map(|ip| saved(netns, variant, ip)));
    }
    all
}

/// A stale DEL, a record of an earlier decision, or an annotation from a template may ask for it.
#[test]
fn the_rules_of_a_sidecar_stay() {
    let transparent = Settings { interception: Interception::Tproxy, ..scene::plain() };
    for by in BACKENDS {
        let (inpod, _dir) = programmer(by);
        for settings in [scene::plain(), transparent.clone()] {
            for remover in BACKENDS {
                let (remover, _dir) = programmer(remover);
                let netns = pod();
                inpod.apply(&netns, program(&settings, true)).unwrap();
                let before = all(&netns);
                remover.remove(&netns).unwrap();
                assert_eq!(all(&netns), before, "{by:?}");
                assert_eq!(inpod.check(&netns, program(&settings, true)).unwrap(), Vec::<String>::new());
            }
        }
    }
}

/// Chains have the same names: one would take the redirection of the other away.
#[test]
fn ambient_is_not_put_where_a_sidecar_is() {
    let transparent = Settings { interception: Interception::Tproxy, ..scene::plain() };
    for by in BACKENDS {
        let (inpod, _dir) = programmer(by);
        for settings in [scene::plain(), transparent.clone()] {
            for ambient in BACKENDS {
                let (ambient, _dir) = programmer(ambient);
                let netns = pod();
                inpod.apply(&netns, program(&settings, true)).unwrap();
                let before = all(&netns);
                let refused = ambient.apply(&netns, &plain()).unwrap_err();
                assert!(refused.to_string().contains("the network namespace is a sidecar's"), "{by:?}: {refused}");
                assert_eq!(all(&netns), before, "{by:?}");
            }
        }
    }
}

/// Chains of these names may be anybody's.
#[test]
fn chains_of_the_same_name_that_say_something_else_stay() {
    for variant in VARIANTS {
        let (inpod, _dir) = programmer(Backend::Iptables(variant));
        let netns = pod();
        let input = "*nat
:ISTIO_OUTPUT - [0:0]
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -p tcp --dport 25 -j RETURN
COMMIT
";
        load(&netns, variant, input);
        let before = all(&netns);
        inpod.remove(&netns).unwrap();
        assert_eq!(all(&netns), before, "{variant}");
    }
}

/// What is left of rules that somebody has damaged is known all the same.
#[test]
fn what_is_left_of_ambient_goes() {
    for backend in BACKENDS {
        for variant in VARIANTS {
            let (inpod, _dir) = programmer(backend);
            let netns = pod();
            let clean = all(&netns);
            inpod.apply(&netns, &plain()).unwrap();
            assert_ne!(all(&netns), clean);
            if backend == Backend::Iptables(variant) {
                load(
                    &netns,
                    variant,
                    "*nat
-F ISTIO_OUTPUT
COMMIT
*mangle
-F ISTIO_PRERT
COMMIT
",
                );
            }
            inpod.remove(&netns).unwrap();
            assert_eq!(all(&netns), clean, "{backend:?} {variant}");
        }
    }
}
