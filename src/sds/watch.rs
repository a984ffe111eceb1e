//! One stream of a client: what it watches, and what a request of it asks for (the state-of-the-world variant of xDS).
//!
//! Pure. A request names what the client wants from now on; it also acknowledges or refuses the answer whose nonce it
//! carries.

use super::wire::{DiscoveryRequest, HEALTH_TYPE, SECRET_TYPE};
use crate::error::Result;
use crate::invalid;

/// Most names of one stream. Envoy has one name for each stream.
const NAMES: usize = 1000;
/// Longest name, bytes: two paths and what is around them.
const NAME_LENGTH: usize = 2 * 4096 + 16;

/// What a stream watches.
#[derive(Debug, Default)]
pub struct Watch {
    /// The first message has come.
    begun: bool,
    /// What is watched; nothing before the first request and after one that ends the subscription.
    names: Option<Vec<String>>,
    /// Nonce of the last answer.
    nonce: String,
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// Answer these names.
    Answer(Vec<String>),
    /// Nothing: an acknowledgement, or names were taken away.
    Nothing,
    /// Nothing: the client could not use the last answer.
    Refused {
        /// Its code.
        code: i32,
        /// Its text.
        message: String,
    },
    /// Nothing: the message does not belong here.
    Skipped,
}

impl Watch {
    /// Takes a request. Fails, and the stream with it, when it says nothing of the client or asks for too much.
    pub fn ask(&mut self, request: DiscoveryRequest) -> Result<Asked> {
        if !self.begun {
            if request.type_url == HEALTH_TYPE {
                return Ok(Asked::Skipped);
            }
            if request.node.is_none_or(|node| node.id.is_empty()) {
                return Err(invalid!("missing node information"));
            }
            self.begun = true;
        }
        if let Some(error) = request.error_detail {
            return Ok(Asked::Refused { code: error.code, message: error.message });
        }
        let (count, longest) = (request.resource_names.len(), request.resource_names.iter().map(String::len).max());
        if count > NAMES || longest.is_some_and(|longest| longest > NAME_LENGTH) {
            return Err(invalid!("too many names, or too long: at most {NAMES} of {NAME_LENGTH} bytes"));
        }
        if request.resource_names.is_empty() && (request.type_url.is_empty() || request.type_url == SECRET_TYPE) {
            self.names = None;
            return Ok(Asked::Nothing);
        }
        let mut names = Vec::new();
        for name in request.resource_names {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let before = match &self.names {
            // A new subscription, also one that goes on from another stream.
            _ if request.response_nonce.is_empty() => Vec::new(),
            None => Vec::new(),
            Some(_) if request.response_nonce != self.nonce => return Ok(Asked::Nothing),
            Some(before) => before.clone(),
        };
        let added: Vec<_> = names.iter().filter(|name| !before.contains(name)).cloned().collect();
        self.names = Some(names);
        Ok(if added.is_empty() { Asked::Nothing } else { Asked::Answer(added) })
    }

    /// Notes that an answer was sent.
    pub fn answered(&mut self, nonce: String) {
        self.nonce = nonce;
    }

    /// What is watched.
    pub fn names(&self) -> &[String] {
        self.names.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Node, Status};
    use super::*;

    fn request(names: &[&str], nonce: &str) -> DiscoveryRequest {
        DiscoveryRequest {
            node: Some(Node { id: "sidecar~1.1.1.1~a.b~c".to_owned() }),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            type_url: SECRET_TYPE.to_owned(),
            response_nonce: nonce.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    #[track_caller]
    fn check(watch: &mut Watch, names: &[&str], nonce: &str, answer: &[&str]) {
        let asked = watch.ask(request(names, nonce)).unwrap();
        let expected = answer.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let expected = if expected.is_empty() { Asked::Nothing } else { Asked::Answer(expected) };
        assert_eq!(asked, expected);
    }

    #[test]
    fn a_subscription_changes() {
        let mut watch = Watch::default();
        check(&mut watch, &["default"], "", &["default"]);
        watch.answered("1".into());
        check(&mut watch, &["default"], "1", &[]);
        // Only what is new is answered.
        check(&mut watch, &["default", "ROOTCA"], "1", &["ROOTCA"]);
        watch.answered("2".into());
        check(&mut watch, &["default", "ROOTCA"], "2", &[]);
        // Of an answer that was overtaken.
        check(&mut watch, &["x"], "1", &[]);
        assert_eq!(watch.names(), ["default", "ROOTCA"]);
        check(&mut watch, &["ROOTCA"], "2", &[]);
        assert_eq!(watch.names(), ["ROOTCA"]);
        // Without a nonce everything is asked for anew.
        check(&mut watch, &["ROOTCA"], "", &["ROOTCA"]);
        check(&mut watch, &["ROOTCA"], "", &["ROOTCA"]);
        // The end of the subscription, and its beginning with an old nonce.
        check(&mut watch, &[], "2", &[]);
        assert!(watch.names().is_empty());
        check(&mut watch, &["default", "default"], "2", &["default"]);
    }

    #[test]
    fn a_stream_goes_on_from_another() {
        check(&mut Watch::default(), &["default"], "old", &["default"]);
    }

    #[test]
    fn refusals_and_strangers() {
        let mut watch = Watch::default();
        assert_eq!(
            watch.ask(DiscoveryRequest { type_url: HEALTH_TYPE.into(), ..request(&["x"], "") }).unwrap(),
            Asked::Skipped
        );
        for node in [None, Some(Node::default())] {
            let e = watch.ask(DiscoveryRequest { node, ..request(&["default"], "") }).unwrap_err();
            assert_eq!(e.to_string(), "missing node information");
        }
        check(&mut watch, &["default"], "", &["default"]);
        watch.answered("1".into());
        let error_detail = Some(Status { code: 3, message: "no".into() });
        let refused = watch.ask(DiscoveryRequest { error_detail, node: None, ..request(&["default"], "1") }).unwrap();
        assert_eq!(refused, Asked::Refused { code: 3, message: "no".into() });
        // The node is in the first message only; a type that is left out is that of secrets.
        let next = DiscoveryRequest { node: None, type_url: String::new(), ..request(&["default", "a"], "1") };
        assert_eq!(watch.ask(next).unwrap(), Asked::Answer(vec!["a".into()]));
        assert!(watch.ask(request(&vec!["a"; NAMES + 1], "1")).is_err());
        assert!(watch.ask(request(&["a".repeat(NAME_LENGTH + 1).as_str()], "1")).is_err());
    }
}
