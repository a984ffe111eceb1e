//! Who is a pod: real processes in a node of its own, real cgroups of both versions, real user namespaces, and an
//! unprivileged user who wants a pod's identity.

mod attack;
mod secrets;
mod variations;

/// What the kubelet calls the pods' directories after.
const CONTAINER: &str = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961";

/// A user of the node, without any privilege.
const USER: u32 = 4242;

/// The part of a hierarchy that systemd gives to that user.
const DELEGATED: &str = "/user.slice/user-4242.slice/user@4242.service";

/// Becomes that user, who makes a network in a user namespace of his own.
const UNPRIVILEGED: &str = "setpriv --reuid 4242 --regid 4242 --clear-groups --inh-caps=-all --bounding-set=-all \
                            unshare --user --net";

/// The ids that a runtime gives the user namespace of a pod.
const POD_USERS: &str = "0 100000 65536";
