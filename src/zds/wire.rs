//! The messages of ZDS (proto3, package `istio.workload.zds`), one per seqpacket packet. Pure: bytes in, values out.
//!
//! The messages are written out as Rust structs with their field numbers, so that no schema compiler is needed to
//! build. As proto3 demands, fields that we do not know are skipped and an enum's unknown values are kept as numbers.

use crate::error::Result;
use crate::invalid;
use prost::Message;

/// The largest packet either side accepts, in bytes. ztunnel reads into a buffer of this size, and closes the
/// connection on a longer one.
pub const PACKET_LIMIT: usize = 1024;

/// The service account of a pod that names none.
const DEFAULT_SERVICE_ACCOUNT: &str = "default";

/// Protocol versions a ztunnel may announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Version {
    /// Proto3's zero; nobody announces it on purpose.
    NotUsed = 0,
    /// The version spoken here.
    V1 = 1,
}

/// The first packet of a connection, from ztunnel.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ZdsHello {
    /// A [`Version`], or a number from a later schema.
    #[prost(enumeration = "Version", tag = "1")]
    pub version: i32,
}

/// A packet from us.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WorkloadRequest {
    /// What is asked for; absent only in a request of a later schema.
    #[prost(oneof = "Payload", tags = "1, 2, 3, 5")]
    pub payload: Option<Payload>,
}

/// What a [`WorkloadRequest`] asks for.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Payload {
    /// Serve this pod; comes with exactly one descriptor.
    #[prost(message, tag = "1")]
    Add(AddWorkload),
    /// Stop serving this pod.
    #[prost(message, tag = "2")]
    Del(DelWorkload),
    /// The snapshot is complete: drop every pod that was not named. Once per connection.
    #[prost(message, tag = "3")]
    SnapshotSent(SnapshotSent),
    /// Go on serving this pod, whose namespace cannot be given now; only before `SnapshotSent`.
    #[prost(message, tag = "5")]
    Keep(KeepWorkload),
}

/// Serve a pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AddWorkload {
    /// Pod uid.
    #[prost(string, tag = "1")]
    pub uid: String,
    /// Who the pod is; ztunnel exits when it is absent.
    #[prost(message, optional, tag = "2")]
    pub workload_info: Option<WorkloadInfo>,
}

/// Who a pod is. ztunnel looks the pod up by all three; a wrong one is acknowledged, and the pod's traffic hangs.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WorkloadInfo {
    /// Pod name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Service account; an empty one is sent as `default`.
    #[prost(string, tag = "3")]
    pub service_account: String,
}

/// Go on serving a pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeepWorkload {
    /// Pod uid.
    #[prost(string, tag = "1")]
    pub uid: String,
}

/// Stop serving a pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DelWorkload {
    /// Pod uid; its field number is 2.
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// The snapshot is complete.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SnapshotSent {}

/// A packet from ztunnel: exactly one per request, in order.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WorkloadResponse {
    /// The answer.
    #[prost(oneof = "Answer", tags = "1")]
    pub payload: Option<Answer>,
}

/// What a [`WorkloadResponse`] carries.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Answer {
    /// The request was handled.
    #[prost(message, tag = "1")]
    Ack(Ack),
}

/// An acknowledgement.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Ack {
    /// Empty: success.
    #[prost(string, tag = "1")]
    pub error: String,
}

/// The bytes of an `add`. Fails with `Invalid` when they are too many for a packet.
pub fn add(uid: &str, info: &WorkloadInfo) -> Result<Vec<u8>> {
    let mut info = info.clone();
    if info.service_account.is_empty() {
        info.service_account = DEFAULT_SERVICE_ACCOUNT.to_owned();
    }
    encode(Payload::Add(AddWorkload { uid: uid.to_owned(), workload_info: Some(info) }))
}

/// The bytes of a `keep`. Fails with `Invalid` when they are too many for a packet.
pub fn keep(uid: &str) -> Result<Vec<u8>> {
    encode(Payload::Keep(KeepWorkload { uid: uid.to_owned() }))
}

/// The bytes of a `del`. Fails with `Invalid` when they are too many for a packet.
pub fn del(uid: &str) -> Result<Vec<u8>> {
    encode(Payload::Del(DelWorkload { uid: uid.to_owned() }))
}

/// The bytes of `snapshot_sent`.
pub fn snapshot_sent() -> Result<Vec<u8>> {
    encode(Payload::SnapshotSent(SnapshotSent {}))
}

fn encode(payload: Payload) -> Result<Vec<u8>> {
    let bytes = WorkloadRequest { payload: Some(payload) }.encode_to_vec();
    if bytes.len() > PACKET_LIMIT {
        return Err(invalid!(
            "the request to ztunnel has {} bytes and at most {PACKET_LIMIT} can be sent: the pod's uid, name, \
             namespace or service account is too long",
            bytes.len()
        ));
    }
    Ok(bytes)
}

/// Reads a hello and returns the version it announces. A version other than [`Version::V1`] is the caller's to judge.
pub fn decode_hello(packet: &[u8]) -> Result<i32> {
    Ok(ZdsHello::decode(packet).map_err(|e| invalid!("not a hello: {e}"))?.version)
}

/// Reads an acknowledgement: `Err` has ztunnel's text. Anything else is `Invalid`.
pub fn decode_response(packet: &[u8]) -> Result<Result<(), String>> {
    let response = WorkloadResponse::decode(packet).map_err(|e| invalid!("not a response: {e}"))?;
    match response.payload {
        Some(Answer::Ack(ack)) if ack.error.is_empty() => Ok(Ok(())),
        Some(Answer::Ack(ack)) => Ok(Err(ack.error)),
        None => Err(invalid!("a response without an acknowledgement")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn info(service_account: &str) -> WorkloadInfo {
        WorkloadInfo { name: "web".into(), namespace: "shop".into(), service_account: service_account.into() }
    }

    #[track_caller]
    fn check(what: &str, got: &[u8], expected: &[u8]) {
        assert_eq!(got, expected, "{what}");
    }

    /// Written by hand from the field numbers: (number << 3 | 2), length, bytes.
    #[test]
    fn requests_byte_by_byte() {
        check(
            "add",
            &add("u-1", &info("sa")).unwrap(),
            b"\x0a\x16\x0a\x03u-1\x12\x0f\x0a\x03web\x12\x04shop\x1a\x02sa",
        );
        check(
            "add, no service account",
            &add("u-1", &info("")).unwrap(),
            b"\x0a\x1b\x0a\x03u-1\x12\x14\x0a\x03web\x12\x04shop\x1a\x07default",
        );
        check("del: its uid is field 2", &del("u-1").unwrap(), b"\x12\x05\x12\x03u-1");
        check("snapshot_sent", &snapshot_sent().unwrap(), b"\x1a\x00");
        check("keep: field 5", &keep("u-1").unwrap(), b"\x2a\x05\x0a\x03u-1");
    }

    #[test]
    fn packet_of_exactly_the_limit_is_sent_and_one_byte_more_is_not() {
        // Around the uid: 12 LL LL 12 LL LL.
        let fits = del(&"u".repeat(PACKET_LIMIT - 6)).unwrap();
        assert_eq!(fits.len(), PACKET_LIMIT);
        assert_eq!(del(&"u".repeat(PACKET_LIMIT - 5)).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(keep(&"u".repeat(2000)).unwrap_err().kind(), Kind::Invalid);
        let long = WorkloadInfo { name: "n".repeat(1003), ..info("sa") };
        assert_eq!(add("u", &long).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn hellos() {
        for (packet, expected) in [
            (&b"\x08\x01"[..], Some(1)),
            (b"", Some(0)),
            (b"\x08\x07", Some(7)),
            (b"\x08\x01\x12\x03new\x18\x05", Some(1)),
            (b"\x08", None),
            (b"\x0a\x01", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"GET / HTTP/1.1\r\n", None),
        ] {
            assert_eq!(decode_hello(packet).ok(), expected, "{packet:?}");
        }
    }

    #[test]
    fn responses() {
        let nack = "failure to start proxy : port taken".to_owned();
        let mut refused = vec![0x0a, nack.len() as u8 + 2, 0x0a, nack.len() as u8];
        refused.extend_from_slice(nack.as_bytes());
        let later_field = b"\x0a\x05\x12\x03abc".as_slice();
        for (packet, expected) in [
            (&b"\x0a\x00"[..], Some(Ok(()))),
            (b"\x0a\x02\x0a\x00", Some(Ok(()))),
            (later_field, Some(Ok(()))),
            (&refused, Some(Err(nack.clone()))),
            (b"", None),
            (b"\x12\x00", None),
            (b"\x0a\x03\x0a\x01\xff", None),
            (b"\x0a\x05\x0a\x00", None),
            (b"garbage", None),
        ] {
            let got = decode_response(packet);
            assert_eq!(got.as_ref().ok(), expected.as_ref(), "{packet:?}");
            if let Err(e) = got {
                assert_eq!(e.kind(), Kind::Invalid, "{packet:?}");
            }
        }
        for cut in 1..refused.len() {
            assert!(decode_response(&refused[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn requests_survive_every_truncation_and_random_bytes() {
        let whole = add("u-1", &info("sa")).unwrap();
        for cut in 1..whole.len() {
            assert!(WorkloadRequest::decode(&whole[..cut]).is_err(), "cut at {cut}");
        }
        // xorshift: the same bytes in every run.
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..20_000 {
            let len = random() as usize % 64;
            let packet: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            let _ = decode_hello(&packet);
            let _ = decode_response(&packet);
            let _ = WorkloadRequest::decode(&packet[..]);
        }
    }
}
