//! Race repair: pods with a sidecar that started before the plugin was there, so that nothing redirects their traffic.
//! Their validation fails again and again, and they never start.
//!
//! [`detect`] recognises them, [`controller`] says what is done about them, and when ([`order`]). Both are pure: whoever owns the
//! controller carries its orders out.

mod case;
pub(crate) mod controller;
mod deletions;
pub mod detect;
pub(crate) mod order;

use detect::Filter;

/// What this room is told once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Which pods are broken.
    pub filter: Filter,
    /// `--repair-repair-pods`: they are redirected while they run.
    pub repair: bool,
    /// `--repair-delete-pods`: they are deleted, for whoever made them to make them again.
    pub delete: bool,
    /// `--repair-label-pods`, with the label's key and value.
    pub label: Option<(String, String)>,
}
