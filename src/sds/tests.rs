//! The SDS socket, asked as Envoy asks.

use super::server::{Options, Server};
use super::store::Store;
use super::wire::{self, DiscoveryRequest, DiscoveryResponse, Node, SECRET_TYPE, Secret, Status};
use super::{resource, secret};
use crate::error::Error;
use crate::grpc::{self, Code, Incoming, Received};
use crate::h2::{self, Deadlines, Endpoint, Event, StreamId};
use crate::sys::clock;
use prost::Message;
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const QUIET: Duration = Duration::from_millis(150);

struct Bed {
    store: Arc<Store>,
    path: PathBuf,
    _server: Server,
    _dir: tempfile::TempDir,
}

fn bed(patience: Duration) -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made/socket");
    let store = Store::new();
    let options = Options { socket: path.clone(), patience, file_patience: patience };
    let server = Server::start(options, store.clone()).unwrap();
    Bed { store, path, _server: server, _dir: dir }
}

impl Bed {
    fn publish(&self, name: &str, text: &str) {
        self.store.publish(name, secret::roots(name, text.as_bytes(), None));
    }

    fn client(&self) -> Client {
        let socket = UnixStream::connect(&self.path).unwrap();
        let endpoint = Endpoint::client(socket, &h2::Options::default(), Deadlines::default()).unwrap();
        Client { endpoint, streams: HashMap::new() }
    }
}

struct Client {
    endpoint: Endpoint,
    streams: HashMap<StreamId, Incoming>,
}

/// What comes on a stream.
#[derive(Debug)]
enum Got {
    Answer(DiscoveryResponse),
    End(grpc::Status),
}

impl Client {
    fn open(&mut self, path: &str) -> StreamId {
        let stream = grpc::open(&mut self.endpoint, &grpc::request("http", "sds-grpc", path)).unwrap();
        self.streams.insert(stream, Incoming::answers(stream, 1 << 20));
        stream
    }

    /// Opens a stream and asks for names, as Envoy begins.
    fn ask(&mut self, names: &[&str]) -> StreamId {
        let stream = self.open(wire::STREAM_SECRETS);
        self.send(stream, request(names, ""));
        stream
    }

    fn send(&mut self, stream: StreamId, request: DiscoveryRequest) {
        self.endpoint.send(stream, grpc::encode(&request.encode_to_vec()));
    }

    /// What comes next on any stream.
    fn next(&mut self, time: Duration) -> Option<(StreamId, Got)> {
        let deadline = clock::now() + time;
        loop {
            for (id, incoming) in &mut self.streams {
                match incoming.receive(&mut self.endpoint) {
                    Received::Nothing => {}
                    Received::Message(message) => {
                        return Some((*id, Got::Answer(DiscoveryResponse::decode(&*message.to_vec()).unwrap())));
                    }
                    Received::End(status) => {
                        let id = *id;
                        self.streams.remove(&id);
                        return Some((id, Got::End(status)));
                    }
                }
            }
            if let Event::Headers(id, headers) = self.endpoint.next(clock::until(deadline)).unwrap()? {
                self.streams.get_mut(&id).unwrap().head(&headers);
            }
        }
    }

    /// The next thing is an answer on this stream with these secrets; returns its nonce.
    #[track_caller]
    fn expect(&mut self, stream: StreamId, secrets: &[(&str, &str)]) -> String {
        let (found, got) = self.next(SOON).expect("an answer");
        let Got::Answer(answer) = got else { panic!("{got:?}") };
        assert_eq!((found, answer.type_url.as_str()), (stream, SECRET_TYPE));
        let expected: Vec<_> = secrets.iter().map(|(name, text)| roots(name, text)).collect();
        let resources: Vec<_> = answer.resources.iter().map(|any| Secret::decode(&*any.value).unwrap()).collect();
        assert_eq!(resources, expected);
        assert!(answer.resources.iter().all(|any| any.type_url == SECRET_TYPE));
        let (time, number) = answer.version_info.split_once("Z/").unwrap();
        assert!(time.len() == 19 && number.parse::<u64>().unwrap() > 0, "{}", answer.version_info);
        assert!(!answer.nonce.is_empty());
        answer.nonce
    }

    #[track_caller]
    fn expect_end(&mut self, stream: StreamId, code: Code, text: &str) {
        let (found, got) = self.next(SOON).expect("an end");
        let Got::End(status) = got else { panic!("{got:?}") };
        assert_eq!((found, status.code), (stream, code), "{status:?}");
        assert!(status.message.contains(text), "{status:?}");
    }

    #[track_caller]
    fn quiet(&mut self) {
        if let Some(got) = self.next(QUIET) {
            panic!("{got:?}");
        }
    }
}

fn roots(name: &str, text: &str) -> Secret {
    Secret::decode(secret::roots(name, text.as_bytes(), None).as_slice()).unwrap()
}

fn request(names: &[&str], nonce: &str) -> DiscoveryRequest {
    DiscoveryRequest {
        node: nonce.is_empty().then(|| Node { id: "sidecar~10.0.0.1~a.b~b.svc.cluster.local".to_owned() }),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        type_url: SECRET_TYPE.to_owned(),
        response_nonce: nonce.to_owned(),
        ..DiscoveryRequest::default()
    }
}

#[test]
fn what_is_known_is_answered_and_what_changes_is_pushed_once() {
    let bed = bed(SOON);
    bed.publish("default", "1");
    bed.publish("ROOTCA", "r1");
    let mut client = bed.client();
    let certificate = client.ask(&["default"]);
    let nonce = client.expect(certificate, &[("default", "1")]);
    client.send(certificate, request(&["default"], &nonce));
    let authority = client.ask(&["ROOTCA"]);
    let first = client.expect(authority, &[("ROOTCA", "r1")]);
    assert_ne!(first, nonce);
    client.quiet();

    bed.publish("default", "2");
    client.expect(certificate, &[("default", "2")]);
    bed.publish("default", "2");
    bed.publish("other", "x");
    client.quiet();
    // Both at once: the roots first, though their stream is the later one.
    bed.publish("default", "3");
    bed.publish("ROOTCA", "r2");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let Some((stream, Got::Answer(answer))) = client.next(SOON) else { panic!("{seen:?}") };
        seen.push((stream, answer.resources.len()));
    }
    seen.sort();
    assert_eq!(seen, [(certificate, 1), (authority, 1)]);
    client.quiet();
    // A refusal is no request.
    let error_detail = Some(Status { code: 13, message: "Failed to load private key".into() });
    client.send(authority, DiscoveryRequest { error_detail, ..request(&["ROOTCA"], "x") });
    client.quiet();
    assert!(bed.store.is_wanted("default") && bed.store.is_wanted("ROOTCA"));
}

#[test]
fn several_names_on_one_stream() {
    let bed = bed(SOON);
    bed.publish("default", "1");
    bed.publish("ROOTCA", "r1");
    let mut client = bed.client();
    let stream = client.ask(&["default", "ROOTCA"]);
    let nonce = client.expect(stream, &[("ROOTCA", "r1"), ("default", "1")]);
    client.send(stream, request(&["default", "ROOTCA"], &nonce));
    client.quiet();
    client.send(stream, request(&["default"], &nonce));
    client.quiet();
    bed.publish("ROOTCA", "r2");
    client.quiet();
    client.send(stream, request(&["default"], ""));
    let nonce = client.expect(stream, &[("default", "1")]);
    client.send(stream, request(&["default", "ROOTCA"], &nonce));
    let nonce = client.expect(stream, &[("ROOTCA", "r2")]);
    // The end of the subscription.
    client.send(stream, request(&[], &nonce));
    client.quiet();
    bed.publish("default", "2");
    client.quiet();
    // On another stream, with what the former had.
    let again = client.open(wire::STREAM_SECRETS);
    let old =
        DiscoveryRequest { version_info: "old/1".into(), node: request(&[], "").node, ..request(&["default"], "old") };
    client.send(again, old);
    client.expect(again, &[("default", "2")]);
}

#[test]
fn streams_wait_for_what_is_not_known() {
    let bed = bed(SOON);
    let mut client = bed.client();
    let (certificate, authority) = (client.ask(&["default"]), client.ask(&["ROOTCA"]));
    client.quiet();
    bed.store.fail("default", &Error::new("the authority is away"));
    client.quiet();
    bed.publish("ROOTCA", "r");
    client.expect(authority, &[("ROOTCA", "r")]);
    bed.publish("default", "1");
    client.expect(certificate, &[("default", "1")]);
    drop(client);
    let end = clock::now() + SOON;
    while bed.store.is_wanted("default") {
        assert!(clock::now() < end, "the client is gone, and its streams are not");
        clock::sleep(Duration::from_millis(5));
    }
}

#[test]
fn streams_that_waited_long_end_with_the_reason() {
    let bed = bed(Duration::from_millis(200));
    let mut client = bed.client();
    let stream = client.ask(&["default"]);
    bed.store.fail("default", &Error::new("rpc error: code = Unavailable desc = x"));
    let text = "failed to generate secret for default: rpc error: code = Unavailable desc = x";
    client.expect_end(stream, Code::Unknown, text);
    let stream = client.ask(&["ROOTCA"]);
    client.expect_end(stream, Code::Unknown, "failed to generate secret for ROOTCA: nothing was heard of it in time");
    // The connection goes on.
    bed.publish("ROOTCA", "r");
    let stream = client.ask(&["ROOTCA"]);
    client.expect(stream, &[("ROOTCA", "r")]);
}

#[test]
fn what_is_not_served_is_refused() {
    let bed = bed(SOON);
    let mut client = bed.client();
    for name in ["nonsense", "file-root:", "file-cert:~k", "kubernetes://x"] {
        let stream = client.ask(&[name]);
        client.expect_end(stream, Code::Unknown, &format!("failed to generate secret for {name}: "));
    }
    for (path, text) in [
        (wire::DELTA_SECRETS, "DeltaSecrets not implemented"),
        (wire::FETCH_SECRETS, "FetchSecrets not implemented"),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "unknown method"),
    ] {
        let stream = client.open(path);
        client.expect_end(stream, Code::Unimplemented, text);
    }
    let stream = client.open(wire::STREAM_SECRETS);
    client.send(stream, DiscoveryRequest { node: None, ..request(&["default"], "") });
    client.expect_end(stream, Code::InvalidArgument, "missing node information");
    let stream = client.open(wire::STREAM_SECRETS);
    client.endpoint.send(stream, grpc::encode(b"\xff\xff"));
    client.expect_end(stream, Code::InvalidArgument, "not a DiscoveryRequest");
}

#[test]
fn the_socket_is_open_to_all_and_goes_with_the_server() {
    let bed = bed(SOON);
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&bed.path), mode(bed.path.parent().unwrap())), (0o666, 0o750));
    let mut clients: Vec<_> = (0..5).map(|_| bed.client()).collect();
    bed.publish(resource::WORKLOAD, "1");
    for client in &mut clients {
        let stream = client.ask(&["default"]);
        client.expect(stream, &[("default", "1")]);
    }
    let Bed { path, _server, .. } = bed;
    drop(_server);
    assert!(!path.exists());
}

#[test]
fn a_first_request_as_long_as_an_envoys_arrives() {
    let bed = bed(SOON);
    bed.publish("default", "1");
    let mut client = bed.client();
    for _ in 0..3 {
        let stream = client.open(wire::STREAM_SECRETS);
        let mut message = request(&["default"], "").encode_to_vec();
        // Fields of the node that nobody reads.
        let extensions = [[0x4a, 0x7f].as_slice(), &[7; 0x7f]].concat().repeat(1000);
        message.push(0x12);
        let mut length = extensions.len();
        while length > 0x7f {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend(extensions);
        client.endpoint.send(stream, grpc::encode(&message));
        client.expect(stream, &[("default", "1")]);
    }
}

/// One message of `test-fixtures/sds/recorded.jsonl`: what an Envoy and Istio's agent said to each other. The Envoy's
/// description of itself is cut down to its names, and keys are blanked out.
#[derive(serde::Deserialize)]
struct Recorded {
    recording: String,
    stream: String,
    from: String,
    message: String,
}

/// Given what Envoy said, we say what Istio's agent said, in its order; less what it said twice.
#[test]
fn conversations_are_those_of_istios_agent() {
    use base64::Engine;
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("test-fixtures/sds/recorded.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let messages: Vec<Recorded> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut again = 0;
    for conversation in messages.chunk_by(|a, b| a.recording == b.recording) {
        let bed = bed(SOON);
        let mut client = bed.client();
        let mut streams: HashMap<&str, StreamId> = HashMap::new();
        // Their nonces, and ours in their place; what each stream got last.
        let (mut nonces, mut last) = (HashMap::<String, String>::new(), HashMap::<&str, Vec<u8>>::new());
        for said in conversation {
            let bytes = base64::engine::general_purpose::STANDARD.decode(&said.message).unwrap();
            if said.from == "envoy" {
                let mut request = wire::decode_request(&bytes).unwrap();
                if let Some(ours) = nonces.get(&request.response_nonce) {
                    request.response_nonce = ours.clone();
                }
                let stream = *streams.entry(&said.stream).or_insert_with(|| client.open(wire::STREAM_SECRETS));
                client.send(stream, request);
                continue;
            }
            let theirs = DiscoveryResponse::decode(bytes.as_slice()).unwrap();
            let [any] = theirs.resources.as_slice() else { panic!("{} secrets in one answer", theirs.resources.len()) };
            let secret = Secret::decode(any.value.as_slice()).unwrap();
            assert_eq!(encode(&secret), any.value, "the message itself");
            if last.insert(&said.stream, any.value.clone()).as_ref() == Some(&any.value) {
                again += 1;
                continue;
            }
            bed.store.publish(&secret.name, zeroize::Zeroizing::new(any.value.clone()));
            let (stream, got) = client.next(SOON).expect("an answer");
            let Got::Answer(ours) = got else { panic!("{got:?}") };
            assert_eq!(stream, streams[said.stream.as_str()]);
            assert_eq!((&ours.resources, &ours.type_url), (&theirs.resources, &theirs.type_url));
            nonces.insert(theirs.nonce, ours.nonce);
        }
        client.quiet();
    }
    assert_eq!(again, 4, "what is pushed twice there: the roots, at a start and with a new root");
}

/// Written anew with our functions.
fn encode(secret: &Secret) -> Vec<u8> {
    let bytes = |source: &Option<wire::DataSource>| match &source.as_ref().unwrap().data {
        Some(wire::Data::Inline(bytes)) => bytes.clone(),
        other => panic!("{other:?}"),
    };
    match secret.kind.as_ref().unwrap() {
        wire::Kind::TlsCertificate(c) => {
            secret::certificate(&secret.name, &bytes(&c.certificate_chain), &bytes(&c.private_key), None).to_vec()
        }
        wire::Kind::ValidationContext(c) => secret::roots(&secret.name, &bytes(&c.trusted_ca), None).to_vec(),
    }
}
