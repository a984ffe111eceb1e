//! What the agent is sent by plugins, log lines among it, and what it left on disk for itself.

use super::text;
use ferrule::cni::event::{AddAnswer, AddEvent, AttachmentEvent, Failure, GcEvent, Health, ips_of_result};
use ferrule::cni::outside::Outside;
use ferrule::logging::Line;
use ferrule::node::records;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::SystemTime;

/// Everything that the agent reads as JSON.
pub fn agent(input: &[u8]) {
    bodies(input);
    state(input);
    log(input);
}

/// Bodies of requests and answers: what is read and written again is the same.
fn bodies(input: &[u8]) {
    if let Some(event) = again::<AddEvent>(input) {
        for address in event.addresses() {
            assert!(!address.is_unspecified() && address.to_canonical() == address, "{address}");
        }
    }
    again::<AttachmentEvent>(input);
    again::<GcEvent>(input);
    again::<AddAnswer>(input);
    again::<Failure>(input);
    let _ = serde_json::from_slice::<Health>(input);
    if let Ok(result) = serde_json::from_slice::<serde_json::Value>(input) {
        let ips = ips_of_result(Some(&result));
        let all = ips.as_array().map_or(0, Vec::len);
        let read = AddEvent { ips, ..AddEvent::default() }.addresses();
        assert!(read.len() <= all, "{result}");
    }
}

/// `RUN/state.json` and the records of sandboxes.
fn state(input: &[u8]) {
    if let Ok(published) = records::decode_published(input) {
        let rendered = records::render(&published).unwrap();
        assert_eq!(records::decode_published(&rendered).unwrap(), published);
    }
    if let Ok(record) = records::decode_record(input) {
        let written = serde_json::to_vec(&record).unwrap();
        assert_eq!(records::decode_record(&written).unwrap(), record);
    }
    if let Ok(outside) = Outside::decode(input) {
        assert_eq!(Outside::decode(&outside.encode().unwrap()).unwrap(), outside);
    }
    let Some(uid) = text(input) else { return };
    if let Ok(name) = records::file_name(uid) {
        assert!(!name.contains(['/', '\0']) && !name.starts_with('.'), "{name}");
        assert!(name.len() <= 255 && name.strip_suffix(".json") == Some(uid), "{name}");
    }
}

/// A line that a plugin logged: printed as one line, whatever is in it.
fn log(input: &[u8]) {
    let Some(input) = text(input) else { return };
    let line = Line::relayed(input, SystemTime::UNIX_EPOCH);
    let shown = line.text();
    let tabs = shown.chars().filter(|c| c.is_control()).collect::<String>();
    assert!(tabs == "\t\t\t" || tabs == "\t\t\t\t", "{shown:?}");
    let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line.json()).unwrap();
    assert_eq!(json["scope"], "cni-plugin");
    for key in ["level", "time", "msg"] {
        assert!(json[key].is_string(), "{key} in {}", line.json());
    }
}

fn again<T: Serialize + DeserializeOwned + PartialEq + Debug>(input: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(input).ok()?;
    let written = serde_json::to_vec(&value).unwrap();
    assert_eq!(serde_json::from_slice::<T>(&written).unwrap(), value);
    Some(value)
}
