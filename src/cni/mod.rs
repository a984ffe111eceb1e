//! The CNI plugin: what a runtime passes ([`conf`], [`event`]) and what we do with it ([`plugin`]).

pub mod conf;
pub mod event;
pub mod plugin;
