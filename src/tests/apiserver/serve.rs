//! One connection: requests to answers.

use super::fault::Fault;
use super::state::{Inner, Patch};
use super::store::{Change, Kind, Selector, merge};
use super::wire::{self, Request};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What the path of a request says.
struct Route {
    kind: Kind,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
}

impl Route {
    fn of(path: &str) -> Option<Route> {
        let parts: Vec<String> = path.trim_start_matches('/').split('/').map(wire::unescape).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let rest = match parts.as_slice() {
            ["api", "v1", rest @ ..] => rest,
            ["apis", "apps", "v1", rest @ ..] => rest,
            _ => return None,
        };
        let route = |namespace: Option<&str>, plural: &str, name: Option<&str>, subresource: Option<&str>| {
            let owned = |s: Option<&str>| s.map(str::to_owned);
            Some(Route {
                kind: Kind::of_path(plural)?,
                namespace: owned(namespace),
                name: owned(name),
                subresource: owned(subresource),
            })
        };
        match rest {
            ["namespaces", namespace, plural] => route(Some(namespace), plural, None, None),
            ["namespaces", namespace, plural, name] => route(Some(namespace), plural, Some(name), None),
            ["namespaces", namespace, plural, name, sub] => route(Some(namespace), plural, Some(name), Some(sub)),
            [plural] => route(None, plural, None, None),
            [plural, name] => route(None, plural, Some(name), None),
            _ => None,
        }
    }

    fn key(&self) -> (Kind, String, String) {
        (self.kind, self.namespace.clone().unwrap_or_default(), self.name.clone().unwrap_or_default())
    }
}

/// What is answered at once.
struct Answer {
    code: u16,
    headers: String,
    body: String,
}

/// Serves requests until the peer goes. `certified`: the peer showed a certificate of ours.
pub fn connection(inner: &Arc<Inner>, stream: &mut (impl Read + Write), certified: bool) -> io::Result<()> {
    let mut left_over = Vec::new();
    while let Some(request) = wire::read_request(stream, &mut left_over)? {
        inner.note(&request);
        let route = Route::of(request.path());
        let plural = route.as_ref().map_or("", |r| r.kind.plural());
        let fault = inner.fault(verb(&request, route.as_ref()), plural);
        match fault {
            Some(Fault::Silence) => return silence(inner),
            Some(Fault::Close) => return Ok(()),
            _ => {}
        }
        let mut answer = match (&fault, route) {
            (Some(Fault::Answer(code, after)), _) => faulty(*code, *after),
            (Some(Fault::Garbage), Some(_)) if request.query("watch").is_empty() => {
                Answer { code: 200, headers: String::new(), body: "<html>hello</html>".into() }
            }
            _ if !inner.lets_in(&request, certified) => refused(&request),
            (_, None) => ok(
                200,
                match request.path() {
                    "/version" => json!({"major": "1", "minor": "36", "gitVersion": "v1.36.2"}).to_string(),
                    "/readyz" | "/healthz" | "/livez" => "ok".into(),
                    _ => {
                        wire::answer(stream, 404, "", "404 page not found\n")?;
                        continue;
                    }
                },
            ),
            (fault, Some(route)) if !request.query("watch").is_empty() => {
                watch(inner, stream, &request, &route, fault.clone())?;
                continue;
            }
            (fault, Some(route)) => answer(inner, &request, &route, fault.as_ref()),
        };
        match fault {
            Some(Fault::SilenceAfterHead) => {
                wire::begin_chunked(stream)?;
                return silence(inner);
            }
            Some(Fault::CutBody(after)) => {
                answer.body.truncate(after);
                wire::begin_chunked(stream)?;
                return wire::chunk(stream, answer.body.as_bytes());
            }
            Some(Fault::Drip(piece, pause)) => {
                wire::begin_chunked(stream)?;
                for part in answer.body.as_bytes().chunks(piece) {
                    std::thread::sleep(pause);
                    wire::chunk(stream, part)?;
                }
                wire::chunk(stream, b"")?;
            }
            _ => wire::answer(stream, answer.code, &answer.headers, &answer.body)?,
        }
    }
    Ok(())
}

fn verb(request: &Request, route: Option<&Route>) -> &'static str {
    let named = route.is_some_and(|r| r.name.is_some());
    match request.method.as_str() {
        "GET" if !request.query("watch").is_empty() => "watch",
        "GET" if named => "get",
        "GET" => "list",
        "POST" => "create",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    }
}

/// Holds the connection open, saying nothing, until the server is stopped or cuts it.
fn silence(inner: &Inner) -> io::Result<()> {
    let cuts = inner.cuts();
    inner.wait_until(None, |inner| inner.cuts() != cuts);
    Ok(())
}

fn ok(code: u16, body: String) -> Answer {
    Answer { code, headers: String::new(), body }
}

fn status(code: u16, reason: &str, message: &str, details: Value) -> Answer {
    let mut body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason});
    if !details.is_null() {
        body["details"] = details;
    }
    body["code"] = code.into();
    ok(code, body.to_string())
}

fn faulty(code: u16, after: Option<u32>) -> Answer {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let details = after.map_or(Value::Null, |seconds| json!({ "retryAfterSeconds": seconds }));
    let mut answer = status(code, reason, &format!("told to answer {code}"), details);
    if let Some(seconds) = after {
        answer.headers = format!("Retry-After: {seconds}\r\n");
    }
    answer
}

fn refused(request: &Request) -> Answer {
    if request.header("authorization").is_some() {
        return status(401, "Unauthorized", "Unauthorized", Value::Null);
    }
    let message = format!("forbidden: User \"system:anonymous\" cannot {} {}", request.method, request.path());
    status(403, "Forbidden", &message, Value::Null)
}

fn not_found(route: &Route) -> Answer {
    let name = route.name.clone().unwrap_or_default();
    let message = format!("{} {name:?} not found", route.kind.qualified());
    status(404, "NotFound", &message, json!({"name": name, "kind": route.kind.plural()}))
}

fn conflict(route: &Route, why: &str) -> Answer {
    let name = route.name.clone().unwrap_or_default();
    let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", route.kind.singular());
    status(409, "Conflict", &message, json!({"name": name, "kind": route.kind.singular()}))
}

fn metadata_only(request: &Request, fault: Option<&Fault>) -> bool {
    fault != Some(&Fault::WholeObjects)
        && request.header("accept").is_some_and(|accept| accept.contains("as=PartialObjectMetadata"))
}

fn answer(inner: &Inner, request: &Request, route: &Route, fault: Option<&Fault>) -> Answer {
    let metadata_only = metadata_only(request, fault);
    let body: Value = match request.body.as_slice() {
        [] => Value::Null,
        bytes => match serde_json::from_slice(bytes) {
            Ok(body) => body,
            Err(e) => return status(400, "BadRequest", &format!("error decoding: {e}"), Value::Null),
        },
    };
    let mut store = inner.store();
    match (request.method.as_str(), &route.name) {
        ("GET", Some(_)) => match store.objects.get(&route.key()) {
            Some(object) => ok(200, object.whole(route.kind, metadata_only)),
            None => not_found(route),
        },
        ("GET", None) => {
            drop(store);
            list(inner, request, route, metadata_only, fault)
        }
        ("POST", None) => {
            let mut body = body;
            if let Some(namespace) = &route.namespace {
                body["metadata"]["namespace"] = namespace.clone().into();
            }
            if let Some(object) = body.as_object_mut() {
                object.shift_remove("kind");
                object.shift_remove("apiVersion");
            }
            let object = store.put(route.kind, body);
            drop(store);
            inner.changed();
            ok(201, object.whole(route.kind, false))
        }
        ("PATCH", Some(name)) => {
            if request.header("content-type") != Some("application/merge-patch+json") {
                return status(415, "UnsupportedMediaType", "415: Unsupported Media Type", json!({}));
            }
            let Some(before) = store.objects.get(&route.key()).cloned() else { return not_found(route) };
            if !body.is_object() {
                let what = "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}";
                return status(400, "BadRequest", what, Value::Null);
            }
            let have = &before.value["metadata"];
            let asked = &body["metadata"];
            if !asked["uid"].is_null() && asked["uid"] != have["uid"] {
                let text = format!(
                    "Pod {name:?} is invalid: metadata.uid: Invalid value: {}: field is immutable",
                    asked["uid"]
                );
                return status(422, "Invalid", &text, Value::Null);
            }
            if !asked["resourceVersion"].is_null() && asked["resourceVersion"] != have["resourceVersion"] {
                return conflict(
                    route,
                    "the object has been modified; please apply your changes to the latest version",
                );
            }
            let mut value = before.value.clone();
            let mut patch = body.clone();
            if route.subresource.as_deref() == Some("status") {
                patch.as_object_mut().expect("checked above").shift_remove("spec");
            }
            merge(&mut value, &patch);
            let object = if value == before.value { before } else { store.put(route.kind, value) };
            drop(store);
            inner.patched(Patch { namespace: route.namespace.clone().unwrap_or_default(), name: name.clone(), body });
            ok(200, object.whole(route.kind, false))
        }
        ("DELETE", Some(_)) => {
            let Some(before) = store.objects.get(&route.key()).cloned() else { return not_found(route) };
            for (field, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
                let (asked, have) = (&body["preconditions"][field], &before.value["metadata"][field]);
                if !asked.is_null() && asked != have {
                    let text = format!(
                        "the {what} in the precondition ({asked}) does not match the {what} in record ({have})"
                    );
                    return conflict(route, &text);
                }
            }
            let mut value = before.value.clone();
            value["metadata"]["deletionTimestamp"] = "2026-11-30T05:13:09Z".into();
            store.put(route.kind, value);
            let last = store.remove(&route.key());
            drop(store);
            inner.changed();
            last.map_or_else(|| not_found(route), |last| ok(200, last.whole(route.kind, false)))
        }
        _ => status(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
            Value::Null,
        ),
    }
}

fn list(inner: &Inner, request: &Request, route: &Route, metadata_only: bool, fault: Option<&Fault>) -> Answer {
    let endless = fault == Some(&Fault::EndlessPages);
    let mut store = inner.store();
    let limit: usize = request.query("limit").parse().unwrap_or(usize::MAX);
    let token = request.query("continue");
    let (version, mut rest) = if token.is_empty() {
        let selector = Selector::parse(&request.query("fieldSelector"), &request.query("labelSelector"));
        let of_route =
            |key: &&(Kind, String, String)| key.0 == route.kind && route.namespace.as_ref().is_none_or(|n| *n == key.1);
        let objects = &store.objects;
        let all = objects.iter().filter(|(key, _)| of_route(key) && fault != Some(&Fault::EmptyList));
        let all = all.map(|(_, o)| o.clone());
        (store.version, all.filter(|o| selector.matches(o)).collect::<Vec<_>>())
    } else {
        let decoded = URL_SAFE_NO_PAD.decode(&token).ok().and_then(|b| serde_json::from_slice::<Value>(&b).ok());
        let Some(decoded) = decoded else {
            return status(400, "BadRequest", "invalid continue token: continue key is not valid", Value::Null);
        };
        let page = (decoded["rv"].as_u64().unwrap_or(0), decoded["page"].as_u64().unwrap_or(0));
        let Some(rest) = store.pages.remove(&page) else {
            let what = "The provided continue parameter is too old to display a consistent list result. You can start a \
                        new list without the continue parameter";
            return status(410, "Expired", what, Value::Null);
        };
        (page.0, rest)
    };
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if rest.len() > limit || endless {
        let tail = if endless { rest.clone() } else { rest.split_off(limit) };
        let number = store.pages.last_key_value().map_or(1, |((_, n), _)| n + 1).max(inner.next_number());
        store.pages.insert((version, number), tail);
        let token = json!({"v": "meta.k8s.io/v1", "rv": version, "page": number}).to_string();
        metadata["continue"] = URL_SAFE_NO_PAD.encode(token).into();
    }
    drop(store);
    let (kind, api) = match metadata_only {
        true => ("PartialObjectMetadata", "meta.k8s.io/v1"),
        false => (route.kind.singular(), route.kind.api_version()),
    };
    let mut body = format!(r#"{{"kind":"{kind}List","apiVersion":"{api}","metadata":{metadata},"items":["#);
    for (i, object) in rest.iter().enumerate() {
        body += if i == 0 { "" } else { "," };
        body += &object.item(metadata_only);
    }
    body += "]}\n";
    ok(200, body)
}

/// How a change looks to a watch with a selector.
fn event(change: &Change, selector: &Selector, metadata_only: bool) -> Option<String> {
    let before = change.before.as_ref().is_some_and(|o| selector.matches(o));
    let after = change.after.as_ref().is_some_and(|o| selector.matches(o));
    let kind = match (before, after) {
        (false, false) => return None,
        (false, true) => "ADDED",
        (true, true) => "MODIFIED",
        (true, false) => "DELETED",
    };
    let object = change.after.as_ref().unwrap_or(&change.last);
    Some(format!("{{\"type\":\"{kind}\",\"object\":{}}}\n", object.whole(change.key.0, metadata_only)))
}

fn watch(
    inner: &Inner,
    stream: &mut impl Write,
    request: &Request,
    route: &Route,
    fault: Option<Fault>,
) -> io::Result<()> {
    let metadata_only = metadata_only(request, fault.as_ref());
    let selector = Selector::parse(&request.query("fieldSelector"), &request.query("labelSelector"));
    let asked = Duration::from_secs(request.query("timeoutSeconds").parse().unwrap_or(1800));
    let bookmarks = request.query("allowWatchBookmarks") == "true" && fault != Some(Fault::NoBookmarks);
    let end = Instant::now() + asked;
    wire::begin_chunked(stream)?;
    let mut at: u64 = request.query("resourceVersion").parse().unwrap_or(0);
    let oldest = inner.store().oldest;
    let error = match fault {
        Some(Fault::ErrorEvent(code)) => Some(faulty(code, None).body),
        Some(Fault::Garbage) => Some("not JSON".into()),
        _ if at < oldest => {
            Some(status(410, "Expired", &format!("too old resource version: {at} ({oldest})"), Value::Null).body)
        }
        _ => None,
    };
    if let Some(error) = error {
        let line =
            if error.starts_with('{') { format!("{{\"type\":\"ERROR\",\"object\":{error}}}\n") } else { error + "\n" };
        wire::chunk(stream, line.as_bytes())?;
        return wire::chunk(stream, b"");
    }
    let cuts = inner.cuts();
    if fault == Some(Fault::SilenceAfterHead) {
        return silence(inner);
    }
    let (mut sent, mut next_bookmark) = (0, Instant::now() + inner.bookmark_every());
    loop {
        let until = if bookmarks { end.min(next_bookmark) } else { end };
        inner.wait_until(Some(until), |inner| inner.store().version > at || inner.cuts() != cuts);
        if inner.cuts() != cuts {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let mut lines: Vec<String> = {
            let store = inner.store();
            let changes = store.since(at);
            let of_route = |change: &&Change| {
                change.key.0 == route.kind && route.namespace.as_ref().is_none_or(|n| *n == change.key.1)
            };
            let lines = changes.iter().filter(of_route).filter_map(|c| event(c, &selector, metadata_only)).collect();
            at = store.version.max(at);
            lines
        };
        if fault == Some(Fault::Disorder) {
            lines.reverse();
            lines = lines.into_iter().flat_map(|line| [line.clone(), line]).collect();
        }
        let over = Instant::now() >= end;
        let bookmarked = bookmarks && (Instant::now() >= next_bookmark || over);
        if bookmarked {
            next_bookmark = Instant::now() + inner.bookmark_every();
            let empty = if metadata_only { "" } else { r#","spec":{"containers":null},"status":{}"# };
            let (kind, api) = match metadata_only {
                true => ("PartialObjectMetadata", "meta.k8s.io/v1"),
                false => (route.kind.singular(), route.kind.api_version()),
            };
            lines.push(format!(
                "{{\"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"{kind}\",\"apiVersion\":\"{api}\",\"metadata\":{{\"resourceVersion\":\"{at}\"}}{empty}}}}}\n"
            ));
        }
        // Many small events in few writes, as a busy server sends them.
        let mut batch = Vec::new();
        for line in lines {
            match fault {
                Some(Fault::CutBody(after)) if sent + batch.len() + line.len() > after => {
                    let room = after.saturating_sub(sent + batch.len());
                    batch.extend_from_slice(&line.as_bytes()[..room]);
                    wire::chunk(stream, &batch)?;
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Some(Fault::Drip(piece, pause)) => {
                    for part in line.as_bytes().chunks(piece) {
                        std::thread::sleep(pause);
                        wire::chunk(stream, part)?;
                    }
                }
                Some(Fault::EndAfter(events)) => {
                    wire::chunk(stream, line.as_bytes())?;
                    sent += 1;
                    if sent >= events {
                        return wire::chunk(stream, b"");
                    }
                }
                _ => batch.extend_from_slice(line.as_bytes()),
            }
            if batch.len() > 64 << 10 {
                wire::chunk(stream, &batch)?;
                sent += batch.len();
                batch.clear();
            }
        }
        if !batch.is_empty() {
            wire::chunk(stream, &batch)?;
            sent += batch.len();
        }
        if bookmarked {
            inner.bookmarks.fetch_add(1, Ordering::SeqCst);
        }
        if over {
            return wire::chunk(stream, b"");
        }
    }
}
