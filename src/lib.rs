//! Ferrule, a node agent for service meshes.

pub mod agent;
pub mod cli;
pub mod cni;
pub mod config;
pub mod dataplane;
pub mod error;
pub mod http;
pub mod install;
pub mod kube;
pub mod logging;
pub mod metrics;
pub mod pod;
pub mod rules;
pub mod sys;
pub mod zds;
