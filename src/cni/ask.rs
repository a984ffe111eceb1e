//! One question to the agent on `pluginevent.sock`, and what its answer to an ADD means.

use super::event::{AddAnswer, Failure, code};
use crate::error::{Error, Kind, Result};
use crate::http::MAX_BODY;
use crate::http::client::{Response, encode_request, exchange, read_response};
use crate::sys::clock;
use crate::sys::exchange::Exchange;
use crate::sys::unix::{Connection, SocketType};
use nix::errno::Errno;
use serde::Serialize;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Instant;

/// Asks once. `netns` travels with the first byte of the request. Errors are about the connection: whatever the agent
/// answers is an answer.
pub fn ask(socket: &Path, request: &Request<'_>, netns: Option<BorrowedFd<'_>>, deadline: Instant) -> Result<Response> {
    let connection = Connection::connect(socket, SocketType::Stream, clock::until(deadline))?;
    let mut stream = Exchange::new(&connection, deadline);
    let bytes = encode_request(request.method, request.path, "pluginevent.sock", &request.body);
    match netns {
        None => exchange(&mut stream, &bytes, MAX_BODY),
        Some(netns) => match stream.write_all_with_fd(&bytes, netns) {
            // A refusal may come before the whole request is read.
            Err(e) if e.kind() == Kind::PeerGone => read_response(&mut stream, MAX_BODY).map_err(|_| e),
            Err(e) => Err(e.context("send the request")),
            Ok(()) => read_response(&mut stream, MAX_BODY),
        },
    }
}

/// What is asked.
#[derive(Debug)]
pub struct Request<'a> {
    method: &'a str,
    path: &'a str,
    body: Vec<u8>,
}

impl<'a> Request<'a> {
    /// A question without a body.
    pub fn get(path: &'a str) -> Self {
        Request { method: "GET", path, body: Vec::new() }
    }

    /// One with a JSON body.
    pub fn post(path: &'a str, body: &impl Serialize) -> Result<Self> {
        Ok(Request { method: "POST", path, body: serde_json::to_vec(body)? })
    }
}

/// What an answer to an ADD that left the decision to the agent means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The agent decided and did what was to do.
    Done(AddAnswer),
    /// Our agent says no, or failed.
    Refused(Failure),
    /// Our agent is not ready yet (503).
    Starting,
    /// Not our agent's words. Istio's agent answers 200 with nothing for an ambient pod, and 500 with text else.
    Foreign,
}

impl Reply {
    pub(super) fn read(response: &Response) -> Self {
        match response.status {
            503 => Reply::Starting,
            200 => match serde_json::from_slice::<AddAnswer>(&response.body) {
                Ok(answer) => Reply::Done(answer),
                Err(_) => Reply::Foreign,
            },
            _ => failure(response).map_or(Reply::Foreign, Reply::Refused),
        }
    }
}

/// The failure in an answer of our agent with a status other than 200.
pub(super) fn failure(response: &Response) -> Option<Failure> {
    let failure: Failure = serde_json::from_slice(&response.body).ok()?;
    // 0 would say "no error".
    Some(Failure { code: if failure.code == 0 { code::AGENT_REFUSED } else { failure.code }, ..failure })
}

/// The cause of a failed question in a few words, without the socket's path: `connection refused`.
pub fn cause(e: &Error) -> String {
    match (e.kind(), e.errno()) {
        (Kind::TimedOut, _) => "no answer in time".to_owned(),
        (_, Some(errno)) => Errno::from_raw(errno).desc().to_lowercase(),
        _ => e.to_string(),
    }
}

/// What an answer says, for a message: our agent's own words, else its first line.
pub fn words(response: &Response) -> String {
    const LONGEST: usize = 200;
    let text = failure(response).map_or_else(|| String::from_utf8_lossy(&response.body).into(), |f| f.message);
    text.lines().next().unwrap_or_default().trim().chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::decision::Action;

    #[test]
    fn words_are_one_short_line() {
        let check = |body: &str, expected: &str| {
            assert_eq!(words(&Response { status: 503, body: body.as_bytes().to_vec() }), expected, "{body}");
        };
        check("", "");
        check(" starting \nmore", "starting");
        check(r#"{"code":11,"message":"starting: pods\nmore"}"#, "starting: pods");
        check(&"x".repeat(1000), &"x".repeat(200));
    }

    #[test]
    fn answers_to_an_add_have_one_meaning() {
        let check = |status: u16, body: &str, expected: Reply| {
            let response = Response { status, body: body.as_bytes().to_vec() };
            assert_eq!(Reply::read(&response), expected, "{status} {body}");
        };
        for action in [Action::Ambient, Action::Sidecar, Action::None] {
            let body = format!(r#"{{"action":"{}","reason":"r"}}"#, action.word());
            check(200, &body, Reply::Done(AddAnswer { action, reason: "r".into() }));
        }
        check(200, "", Reply::Foreign);
        check(200, r#"{"action":"sometimes","reason":"r"}"#, Reply::Foreign);
        check(200, r#"{"code":100,"message":"m"}"#, Reply::Foreign);
        check(500, "failed to add pod to ambient mesh", Reply::Foreign);
        check(404, "404 page not found\n", Reply::Foreign);
        check(503, "starting\n", Reply::Starting);
        check(503, r#"{"code":11,"message":"starting"}"#, Reply::Starting);
        check(500, r#"{"code":101,"message":"m"}"#, Reply::Refused(Failure::new(code::RULES_FAILED, "m")));
        check(500, r#"{"code":0,"message":"m"}"#, Reply::Refused(Failure::new(code::AGENT_REFUSED, "m")));
        check(500, r#"{"code":-1,"message":"m"}"#, Reply::Foreign);
    }
}
