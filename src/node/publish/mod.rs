//! What the agent tells others: the pods' annotations, Events and remedies through the API server, and files in the run
//! directory.

pub(super) mod annotator;
pub(super) mod event_recorder;
pub(super) mod remedies;
pub(super) mod state_file;
pub(super) mod writer;
