//! The workload's token, read for every attempt: the kubelet and people replace the file at any time.

use crate::error::Result;
use crate::sys::file;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::path::Path;
use std::time::{Duration, SystemTime};
use zeroize::Zeroizing;

/// Largest token file, bytes.
const LIMIT: usize = 64 << 10;

/// The value of the `authorization` header. Nothing when there is no token: the call goes on without, since a client
/// certificate may be enough. Fails when the file cannot be read, or is not text that a header can carry.
pub fn bearer(path: &Path) -> Result<Option<Zeroizing<String>>> {
    let bytes = Zeroizing::new(file::read_limited(path, LIMIT)?);
    let token = bytes.trim_ascii();
    if !token.iter().all(u8::is_ascii_graphic) {
        return Err(crate::invalid!("read {}: not a token: it has blanks or control characters in it", path.display()));
    }
    // Graphic ASCII, so nothing is lost.
    let text = || Zeroizing::new(["Bearer ", &String::from_utf8_lossy(token)].concat());
    Ok((!token.is_empty()).then(text))
}

/// What a token (JWT) says of itself. Nothing is verified: it is for messages to people.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claims {
    /// The end of its life.
    pub expires: Option<SystemTime>,
    /// The services that it is meant for.
    pub audiences: Vec<String>,
}

#[derive(serde::Deserialize)]
struct Payload {
    exp: Option<f64>,
    #[serde(default)]
    aud: Audience,
}

#[derive(serde::Deserialize, Default)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
    #[default]
    None,
}

/// Reads the claims of a bearer header; nothing when it is no JWT.
pub fn claims(bearer: &str) -> Option<Claims> {
    let mut parts = bearer.strip_prefix("Bearer ")?.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    let json = Zeroizing::new(URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?);
    let payload: Payload = serde_json::from_slice(&json).ok()?;
    let since = payload.exp.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let audiences = match payload.aud {
        Audience::One(audience) => vec![audience],
        Audience::Many(audiences) => audiences,
        Audience::None => Vec::new(),
    };
    Some(Claims { expires: since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)), audiences })
}

/// What to tell people of a token that an authority refused.
pub fn describe(bearer: Option<&str>, now: SystemTime) -> String {
    let Some(bearer) = bearer else { return "no token was sent".to_owned() };
    let Some(claims) = claims(bearer) else { return "the token is no JWT".to_owned() };
    let audiences = claims.audiences.join(", ");
    match claims.expires.map(|expires| (expires.duration_since(now), now.duration_since(expires))) {
        Some((Err(_), Ok(ago))) => format!("the token expired {} s ago, audience {audiences:?}", ago.as_secs()),
        Some((Ok(left), _)) => format!("the token is valid for {} s, audience {audiences:?}", left.as_secs()),
        _ => format!("the token does not say when it expires, audience {audiences:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn jwt(payload: &str) -> String {
        format!("Bearer e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload))
    }

    #[test]
    fn tokens_are_read_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(bearer(&path).is_err());
        let check = |content: &[u8], expected: Option<&str>| {
            std::fs::File::options()
                .create(true)
                .write(true)
                .truncate(true)
                .open(&path)
                .unwrap()
                .write_all(content)
                .unwrap();
            assert_eq!(bearer(&path).ok().flatten().as_deref().map(String::as_str), expected);
        };
        check(b"abc.def\n", Some("Bearer abc.def"));
        check(b" new \r\n", Some("Bearer new"));
        check(b"", None);
        check(b" \n", None);
        check(b"a b", None);
        check(b"a\nb", None);
        check(b"\xff", None);
        assert!(bearer(&path).unwrap_err().to_string().contains("not a token"));
    }

    #[test]
    fn tokens_are_described() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let check = |token: Option<&str>, expected: &str| assert_eq!(describe(token, now), expected);
        check(None, "no token was sent");
        check(Some("Bearer abc"), "the token is no JWT");
        check(Some("Bearer a.b.c"), "the token is no JWT");
        check(
            Some(&jwt(r#"{"exp":940,"aud":["istio-ca","x"]}"#)),
            r#"the token expired 60 s ago, audience "istio-ca, x""#,
        );
        check(Some(&jwt(r#"{"exp":1010.5,"aud":"istio-ca"}"#)), r#"the token is valid for 10 s, audience "istio-ca""#);
        check(Some(&jwt(r#"{"exp":-1}"#)), r#"the token does not say when it expires, audience """#);
        check(Some(&jwt(r#"{"exp":1e300}"#)), r#"the token does not say when it expires, audience """#);
        check(Some(&jwt("[]")), "the token is no JWT");
    }
}
