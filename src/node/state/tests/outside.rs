//! Which pods are told to be outside the mesh.

use super::*;

impl Script {
    /// Exactly these pods of namespace `default`, or nothing yet.
    #[track_caller]
    fn assert_outside(&self, uids: Option<&[&str]>) {
        let name = |uid: &str| PodName { namespace: "default".to_owned(), name: uid.to_owned() };
        let pods =
            |uids: &[&str]| Outside::new(&config().policy, uids.iter().map(|uid| ((*uid).to_owned(), name(uid))));
        assert_eq!(self.outside, uids.map(pods));
    }

    fn pod(&mut self, pod: Object) {
        self.source(Notice::Pod(Box::new(pod)));
    }
}

#[test]
fn nothing_is_told_before_everything_is_known() {
    let mut script = Script::after(Config { cluster: true, ..config() }, Vec::new(), Published::new());
    script.pod(pod("a", false));
    script.assert_outside(None);
    // An earlier run's word ends even if there is nothing to say: the pod's namespace is not known.
    script.source(Notice::Synced);
    script.assert_outside(Some(&[]));
    let namespace = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Notice::Namespace(Namespace { name: "default".to_owned(), labels })
    };
    script.source(namespace(&[]));
    script.assert_outside(Some(&["a"]));
    script.source(namespace(&[("mesh", "on")]));
    script.assert_outside(Some(&[]));
    script.source(namespace(&[("mesh", "off")]));
    script.assert_outside(Some(&["a"]));
    script.source(Notice::NamespaceGone("default".to_owned()));
    script.assert_outside(Some(&[]));
}

#[test]
fn a_pod_is_told_of_for_as_long_as_it_is_outside() {
    let mut script = Script::running();
    script.assert_outside(Some(&[]));
    for name in ["b", "c"] {
        script.pod(pod(name, false));
    }
    script.assert_outside(Some(&["b", "c"]));
    script.pod(pod("b", true));
    script.assert_outside(Some(&["c"]));
    script.pod(pod("b", false));
    script.source(Notice::PodGone("c".to_owned()));
    script.assert_outside(Some(&["b"]));
    // These need no sandbox (any more).
    script.pod(Object { phase: crate::pod::types::Phase::Finished, ..pod("b", false) });
    script.pod(Object { host_network: true, ..pod("d", false) });
    script.assert_outside(Some(&[]));
}
