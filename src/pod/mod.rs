//! What a pod is and whether we want it. Pure: no clock, no environment, no files.
//!
//! [`object`] turns text ([`yaml`]) into [`types`]; [`decision`] says whether and how a pod is in the mesh, by [`selector`]; and
//! [`overrides`] reads what a pod's annotations change. [`explanation`] tells people.

pub mod decision;
pub mod explanation;
pub mod failed_init;
pub(crate) mod field;
pub mod object;
pub mod overrides;
pub mod query;
pub mod redirection;
pub mod selector;
mod strings;
pub mod types;
pub mod yaml;
