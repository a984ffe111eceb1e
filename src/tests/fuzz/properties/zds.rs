//! Packets from ztunnel, and those to it.

use ferrule::zds::wire::{self, Payload, WorkloadInfo, WorkloadRequest};
use prost::Message;

/// What is refused or read on this side is so on the other; what we send fits, and says what it was made of.
pub fn packets(input: &[u8]) {
    let _ = wire::decode_hello(input);
    if let Ok(Err(text)) = wire::decode_response(input) {
        assert!(!text.is_empty() && text.len() < input.len(), "{text:?}");
    }
    if let Ok(request) = WorkloadRequest::decode(input) {
        assert_eq!(WorkloadRequest::decode(request.encode_to_vec().as_slice()).unwrap(), request);
    }
    let text = String::from_utf8_lossy(input);
    let mut parts = text.split('\n').map(str::to_owned);
    let mut part = || parts.next().unwrap_or_default();
    let uid = part();
    let info = WorkloadInfo { name: part(), namespace: part(), service_account: part() };
    for packet in [wire::add(&uid, &info), wire::keep(&uid), wire::del(&uid)].into_iter().flatten() {
        assert!(packet.len() <= wire::PACKET_LIMIT);
        match WorkloadRequest::decode(packet.as_slice()).unwrap().payload.unwrap() {
            Payload::Add(add) => {
                let sent = add.workload_info.unwrap();
                assert!(!sent.service_account.is_empty());
                assert_eq!((&add.uid, &sent.name, &sent.namespace), (&uid, &info.name, &info.namespace));
            }
            Payload::Keep(keep) => assert_eq!(keep.uid, uid),
            Payload::Del(del) => assert_eq!(del.uid, uid),
            Payload::SnapshotSent(_) => panic!("nobody asked for it"),
        }
    }
}
