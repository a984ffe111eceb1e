//! The CNI plugin: what a runtime passes ([`conf`], [`version`]), what we answer ([`result`]), what the agent is asked
//! ([`event`]) and the verbs ([`plugin`]).

pub mod ask;
pub mod conf;
pub mod event;
mod fallback;
mod log;
pub mod outside;
pub mod plugin;
pub mod result;
pub mod version;
