//! What the API server says when it says no.

use crate::error::{Error, Kind};
use serde::Deserialize;
use std::fmt;
use std::time::Duration;

/// A request that did not succeed.
#[derive(Debug)]
pub struct Failure {
    /// Verb and resource: `get pod team-a/web-0`.
    pub(super) request: String,
    /// The HTTP status; none when there was no answer, or not a whole one.
    pub(super) status: Option<u16>,
    /// What the server or the transport said.
    pub(super) message: String,
    /// The server said when to come back.
    pub(super) retry_after: Option<Duration>,
    /// The answer arrived but makes no sense.
    pub(super) undecodable: bool,
    /// The server does not know the resourceVersion yet, or never will (its storage was restored).
    pub(super) version_too_new: bool,
}

impl Failure {
    /// No answer, or a broken one.
    pub(super) fn transport(request: &str, error: impl fmt::Display) -> Self {
        Failure::of(request, None, error.to_string())
    }

    /// An answer that cannot be decoded.
    pub(super) fn decode(request: &str, error: impl fmt::Display) -> Self {
        Failure { undecodable: true, ..Failure::of(request, None, format!("bad answer: {error}")) }
    }

    /// An HTTP status, or an ERROR event, with the body the server sent.
    pub(super) fn status(request: &str, code: u16, body: &str) -> Self {
        let Ok(status) = serde_json::from_str::<Status>(body) else {
            // A proxy in between, or a server in trouble.
            let line = body.lines().next().unwrap_or_default();
            return Failure::of(request, Some(code), line.chars().take(200).collect());
        };
        let details = status.details.unwrap_or_default();
        let too_new = |cause: &Cause| cause.reason == "ResourceVersionTooLarge";
        Failure {
            retry_after: details.retry_after_seconds.filter(|s| *s > 0).map(Duration::from_secs),
            version_too_new: details.causes.unwrap_or_default().iter().any(too_new),
            ..Failure::of(request, Some(status.code.unwrap_or(code)), status.message)
        }
    }

    fn of(request: &str, status: Option<u16>, message: String) -> Self {
        let request = request.to_owned();
        Failure { request, status, message, retry_after: None, undecodable: false, version_too_new: false }
    }

    /// Whether the request may succeed when it is sent again, without changing anything twice.
    pub(super) fn may_pass(&self) -> bool {
        match self.status {
            None => !self.undecodable,
            Some(code) => code == 429 || code >= 500,
        }
    }

    /// The server did nothing and asks to come back.
    pub(super) fn was_turned_away(&self) -> bool {
        self.status == Some(429) || (self.status == Some(503) && self.retry_after.is_some())
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = match failure.status {
            Some(401) => Kind::Unauthorized,
            Some(403) => Kind::Forbidden,
            Some(404) => Kind::NotFound,
            // 422: a patch that names the uid of another object.
            Some(409 | 422) => Kind::Conflict,
            Some(410) => Kind::Gone,
            Some(429) => Kind::Busy,
            Some(_) => Kind::Other,
            None if failure.undecodable => Kind::Invalid,
            None => Kind::PeerGone,
        };
        Error::of(kind, failure)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.request)?;
        if let Some(code) = self.status {
            write!(f, ": {code}")?;
            let name = ureq::http::StatusCode::from_u16(code).ok().and_then(|c| c.canonical_reason());
            name.map_or(Ok(()), |name| write!(f, " {name}"))?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

/// `meta/v1 Status`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    // Tells a Status from any other JSON.
    #[serde(rename = "status")]
    _status: String,
    #[serde(default)]
    message: String,
    code: Option<u16>,
    details: Option<Details>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    retry_after_seconds: Option<u64>,
    causes: Option<Vec<Cause>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cause {
    reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_verb_resource_status_and_the_servers_message() {
        let check = |code: u16, body: &str, text: &str, kind: Kind| {
            let e = Error::from(Failure::status("get pod a/b", code, body));
            assert_eq!((e.to_string().as_str(), e.kind()), (text, kind));
        };
        let status = |code: u16, message: &str| {
            format!(r#"{{"kind":"Status","status":"Failure","message":"{message}","code":{code}}}"#)
        };
        check(404, &status(404, "pods b not found"), "get pod a/b: 404 Not Found: pods b not found", Kind::NotFound);
        check(401, &status(401, "Unauthorized"), "get pod a/b: 401 Unauthorized: Unauthorized", Kind::Unauthorized);
        check(403, "", "get pod a/b: 403 Forbidden", Kind::Forbidden);
        check(409, &status(409, "x"), "get pod a/b: 409 Conflict: x", Kind::Conflict);
        check(422, &status(422, "x"), "get pod a/b: 422 Unprocessable Entity: x", Kind::Conflict);
        check(200, &status(410, "too old"), "get pod a/b: 410 Gone: too old", Kind::Gone);
        check(502, "<html>bad\ngateway", "get pod a/b: 502 Bad Gateway: <html>bad", Kind::Other);
        check(500, r#"{"a":1}"#, r#"get pod a/b: 500 Internal Server Error: {"a":1}"#, Kind::Other);
        let e = Error::from(Failure::transport("get pod a/b", "connection refused"));
        assert_eq!((e.to_string().as_str(), e.kind()), ("get pod a/b: connection refused", Kind::PeerGone));
    }

    #[test]
    fn reads_the_details() {
        let body = r#"{"status":"Failure","code":429,"details":{"retryAfterSeconds":3}}"#;
        let failure = Failure::status("", 429, body);
        assert_eq!(failure.retry_after, Some(Duration::from_secs(3)));
        assert!(failure.was_turned_away() && failure.may_pass());
        let body = r#"{"status":"Failure","code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
        assert!(Failure::status("", 504, body).version_too_new);
        assert!(!Failure::status("", 500, "").was_turned_away());
    }
}
