//! Requests of an SDS client.

use ferrule::sds::resource::Resource;
use ferrule::sds::watch::{Asked, Watch};
use ferrule::sds::wire;

/// A stream of requests, each behind two bytes of length: what is answered was asked for and is watched, nothing twice,
/// and an acknowledgement is never answered.
pub fn stream(input: &[u8]) {
    let (mut watch, mut rest, mut nonce) = (Watch::default(), input, 0);
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(after.len());
        let (message, next) = after.split_at(length);
        rest = next;
        let Ok(request) = wire::decode_request(message) else { continue };
        let Ok(asked) = watch.ask(request.clone()) else { break };
        if let Asked::Answer(names) = asked {
            assert!(!names.is_empty());
            for (at, name) in names.iter().enumerate() {
                assert!(request.resource_names.contains(name) && watch.names().contains(name));
                assert!(!names[..at].contains(name));
                let _ = Resource::parse(name);
            }
            nonce += 1;
            watch.answered(nonce.to_string());
            let acknowledgement = wire::DiscoveryRequest {
                resource_names: watch.names().to_vec(),
                response_nonce: nonce.to_string(),
                ..request
            };
            assert_eq!(watch.ask(acknowledgement).unwrap(), Asked::Nothing);
        }
    }
}
