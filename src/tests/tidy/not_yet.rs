//! What breaks a rule for now: files by their path below `src`. The lists only become shorter.

/// Files that are part of a circle of files.
pub(super) const CIRCLES: &str = "

install/conf/mod.rs
install/directory.rs
install/entry.rs
install/kubeconfig.rs
install/mod.rs
install/plan.rs
install/plan/runtime.rs



tests/bench/cluster.rs
tests/bench/mod.rs
tests/bench/rows.rs
tests/fuzz/properties/agent.rs
tests/fuzz/properties/cni.rs
tests/fuzz/properties/install.rs
tests/fuzz/properties/kernel.rs
tests/fuzz/properties/kube.rs
tests/fuzz/properties/mod.rs
tests/fuzz/properties/options.rs
tests/fuzz/properties/pod.rs
tests/install.rs
tests/install/faults.rs
";

/// Files that import what is not below them.
pub(super) const FLOORS: &str = "
";

/// Files that are long without a reason.
pub(super) const LONG: &str = "
rules/sidecar.rs

tests/install.rs
";

/// Files with documentation that begins with a piece of a sentence.
pub(super) const CLIPPED: &str = "
certificate/issued.rs
certificate/roots.rs
certificate/x509.rs

cli/columns.rs
doctor/agent.rs
doctor/firewall.rs
doctor/installation.rs
doctor/platform.rs
doctor/server.rs
cli/plugin.rs
cli/status.rs

cni/ask.rs
cni/fallback.rs
cni/log.rs
cni/outside.rs
cni/version.rs

config/iptables.rs
config/option.rs

dataplane/procfs/cgroup.rs

install/conflict.rs
install/keeper.rs
install/plan.rs

node/event.rs
node/execute.rs

node/state.rs
node/state/view.rs

pod/failed_init.rs
pod/query.rs
pod/redirection.rs
pod/selector.rs
pod/strings.rs
pod/types.rs



tests/bench/cluster.rs
tests/bench/pairs.rs
tests/bench/ztunnel.rs
tests/sidecar/envoy.rs
tests/tools.rs
tests/tools/doctor.rs
";
