//! What a pod is and whether we want it. Pure: no clock, no environment, no files.

pub mod decision;
pub mod object;
pub mod overrides;
pub mod selector;
pub mod types;
