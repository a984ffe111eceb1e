//! What a reflector knows, and whom it tells.

use crate::kube::known::Known;

/// What is known, and who is told of news. One lock, so that news are told in the order in which they became known.
pub(super) struct Picture<A: ?Sized> {
    pub(super) known: Known,
    pub(super) audience: A,
}

/// What a reflector asks of the code for its kind of object.
pub(super) trait Audience: Send {
    /// Decodes an object and holds it; its key and version. Fails when it is not known which object it is.
    fn decode(&mut self, json: &str) -> std::result::Result<(&str, &str), serde_json::Error>;
    /// Tells of the object that was decoded last.
    fn upserted(&mut self);
    /// Tells that there is no object of this key any more.
    fn removed(&mut self, key: String);
    /// Tells that the first list is whole.
    fn synced(&mut self);
    /// Tells that nothing was heard of the server for a while, or that this is over.
    fn lagging(&mut self, why: Option<String>);
}
