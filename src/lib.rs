//! Ferrule, a node agent for service meshes: a drop-in for Istio's CNI node agent.
//!
//! # Bird's eye view
//!
//! One executable is started in two ways. As the *agent* it runs once per node: it puts the CNI plugin on the node and
//! keeps it there, and it decides which pods are in the mesh. As the *plugin* it is run by the container runtime for
//! each pod that comes or goes, asks the agent over a Unix socket, and lives a few milliseconds.
//!
//! ```text
//!  container runtime ──CNI──▶ plugin ──pluginevent.sock──▶ agent ──ztunnel.sock (ZDS)──▶ ztunnel
//!                                        netns descriptor    │        netns descriptor
//!                        API server, or a directory ──watch──┤
//!                                                            ▼
//!                                     rules, routes and marks inside the pod's network namespace
//! ```
//!
//! A pod is *enrolled* in this order: its namespace is opened, its rules are programmed and verified, ztunnel
//! acknowledges that it listens inside, and only then the pod is published as `enabled`. A step that fails undoes those
//! before it when the runtime is going to try again with a new sandbox, and is retried when the pod is already running.
//!
//! # Code map
//!
//! Rooms stand on floors. A room imports only rooms of rows below its own, and the last row, which is the ground for
//! all and whose rooms know each other. The first floor is pure: no clock, no environment, no files; from the ground
//! it takes errors alone. No file uses a file that uses it, even by way of others. Tests read this,
//! together with the other rules of the house.
//!
//! | floor | rooms |
//! |---|---|
//! | 4 | `main` the one front door |
//! | 4 | [`cli`] argv to command |
//! | 4 | [`config`] strings to each room's own options |
//! | 4 | [`doctor`] looks at a node from outside and says what is wrong |
//! | 3 | [`node`] decides, and owns all mutable state; [`proxy`] the proxy agent |
//! | 2 | [`cni`] the plugin; [`install`] the plugin's executable and configuration on the node; [`dataplane`] rules meet the kernel; [`repair`] pods that started before the plugin was there; [`zds`] serving ztunnel; [`ca`] having certificates signed; [`sds`] secrets for Envoy; [`kube`] the Kubernetes API |
//! | 1 | [`pod`] what a pod is and whether we want it |
//! | 1 | [`rules`] what the packet filter should say; [`certificate`] keys, requests, chains and roots |
//! | 0 | [`grpc`] calls over HTTP/2 |
//! | 0 | [`http`] HTTP/1.1 over any stream; [`h2`] HTTP/2 |
//! | 0 | [`sys`] one door per effect; [`error`]; [`logging`]; [`metrics`] |
//!
//! Where to begin reading: [`pod::decision::decide`] for who is in the mesh, [`rules::inpod`] for what is programmed,
//! [`dataplane::engine`] for how, [`zds::server`] for the hand-over, [`cni::plugin`] for a runtime's call, [`node`] for
//! how it all hangs together.
//!
//! # Invariants
//!
//! - **One owner.** All mutable state belongs to the agent's owner thread. Every source sends it one closed event type;
//!   its step is pure and returns actions; workers carry them out and send results back as events.
//! - **One decision.** Plugin, agent and tools ask the same function whether a pod is in the mesh. A failure to decide
//!   is never taken for "no".
//! - **Never the host.** No rule of a pod is ever written into the host's network namespace: it is refused by device
//!   and inode.
//! - **Never a window.** A difference between what is and what should be is replaced without a moment in which traffic
//!   escapes; applying what is already right writes nothing.
//! - **Only what is ours.** Removal takes the exact list of our chains, jumps, routes and marks, and leaves the rest of
//!   the packet filter bit for bit.
//! - **Whole files.** A file is replaced by rename after fsync, or not at all; a configuration that cannot be parsed is
//!   never overwritten.
//! - **Teardown always works.** DEL succeeds whatever is missing; the plugin's executable stays as long as a sandbox
//!   needs it for its own removal.
//! - **Every wait is bounded**, every program has a deadline, no lock is held across I/O.
//! - **Safe against kill -9.** The next start converges to the same state from what the kernel and the files say.

pub mod ca;
pub mod certificate;
pub mod cli;
pub mod cni;
pub mod config;
pub mod dataplane;
pub mod doctor;
pub mod error;
pub mod grpc;
pub mod h2;
pub mod http;
pub mod install;
pub mod kube;
pub mod logging;
pub mod metrics;
pub mod node;
pub mod pod;
pub mod proxy;
pub mod repair;
pub mod rules;
pub mod sds;
pub mod sys;
pub mod zds;
