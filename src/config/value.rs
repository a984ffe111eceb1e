//! Texts to values, in the syntaxes of options. An error says what is allowed.

use super::option::Expected;
use crate::dataplane::procfs::root::CgroupRoots;
use crate::logging;
use crate::pod::overrides::parse_bool;
use crate::pod::selector::EnablementSelectors;
use crate::pod::yaml;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// A boolean as Go's `strconv.ParseBool` takes it.
pub fn boolean(text: &str) -> Result<bool, Expected> {
    parse_bool(text).ok_or_else(|| "true or false (also 1, t, T, TRUE, True, 0, f, F, FALSE, False)".to_owned())
}

/// A list separated by commas; blanks around entries and empty entries do not count.
pub fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
}

/// Names of namespaces: DNS labels (RFC 1123), separated by commas.
pub fn namespaces(text: &str) -> Result<Vec<String>, Expected> {
    names(text, "namespaces", is_label)
}

/// Names of runtime classes: DNS subdomains (RFC 1123), separated by commas.
pub fn runtime_classes(text: &str) -> Result<Vec<String>, Expected> {
    names(text, "runtime classes", |name| name.len() <= 253 && name.split('.').all(is_label))
}

fn names(text: &str, of: &str, is_name: impl Fn(&str) -> bool) -> Result<Vec<String>, Expected> {
    let names = list(text);
    match names.iter().find(|name| !is_name(name)) {
        Some(wrong) => Err(format!("names of {of}, separated by commas; {wrong:?} cannot be one")),
        None => Ok(names),
    }
}

fn is_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = name.bytes().next().is_some_and(inner) && name.bytes().last().is_some_and(inner);
    ends && name.len() <= 63 && name.bytes().all(|b| inner(b) || b == b'-')
}

/// A file mode: octal as `0600` or `0o600`, decimal as `384`.
pub fn mode(text: &str) -> Result<u32, Expected> {
    let octal = text.strip_prefix("0o").or_else(|| text.strip_prefix('0').filter(|rest| !rest.is_empty()));
    let (digits, radix) = octal.map_or((text, 10), |digits| (digits, 8));
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    let mode = u32::from_str_radix(digits, radix).ok().filter(|mode| plain && *mode <= 0o777);
    mode.ok_or_else(|| "a file mode up to 0777, octal as 0600 or 0o600, or decimal as 384".to_owned())
}

/// The longest duration that is taken, so that adding one to a time never overflows: a year.
const LONGEST: Duration = Duration::from_secs(8760 * 3600);

/// A duration: numbers with units, as `30s`, `1m30s` or `500ms`; `0` needs no unit.
pub fn duration(text: &str) -> Result<Duration, Expected> {
    let expected = || "a duration as 30s, 1m30s or 500ms (units h, m, s, ms), up to 8760h, or 0".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    if text.is_empty() {
        return Err(expected());
    }
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(expected)?);
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let number: u64 = number.parse().map_err(|_| expected())?;
        let part = match unit {
            "h" => number.checked_mul(3600).map(Duration::from_secs),
            "m" => number.checked_mul(60).map(Duration::from_secs),
            "s" => Some(Duration::from_secs(number)),
            "ms" => Some(Duration::from_millis(number)),
            _ => None,
        };
        total = part.and_then(|part| total.checked_add(part)).filter(|t| *t <= LONGEST).ok_or_else(expected)?;
        rest = after;
    }
    Ok(total)
}

/// A TCP port; 0 turns the thing off.
pub fn port(text: &str) -> Result<u16, Expected> {
    text.parse().map_err(|_| "a port from 1 to 65535, or 0 for off".to_owned())
}

/// An address of one family.
pub fn address<A: FromStr>(text: &str, family: &str) -> Result<A, Expected> {
    text.parse().map_err(|_| format!("an {family} address"))
}

/// An absolute path.
pub fn path(text: &str) -> Result<PathBuf, Expected> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("an absolute path".to_owned()) }
}

/// Stands at the beginning of a path for the value of `--host-root`.
pub const HOST_ROOT: &str = "{host-root}";

/// An absolute path, or one that begins with [`HOST_ROOT`].
pub fn host_path(text: &str) -> Result<PathBuf, Expected> {
    let rest = text.strip_prefix(HOST_ROOT).unwrap_or(text);
    path(rest).map(|_| PathBuf::from(text)).map_err(|_| format!("an absolute path, or one below {HOST_ROOT}"))
}

/// Values of the kubelet's `--cgroup-root`, separated by commas.
pub fn cgroup_roots(text: &str) -> Result<CgroupRoots, Expected> {
    CgroupRoots::parse(text).map_err(|_| "absolute paths, separated by commas".to_owned())
}

/// The name of a file in a directory known otherwise.
pub fn file_name(text: &str) -> Result<String, Expected> {
    if text.contains('/') || text == "." || text == ".." {
        return Err("a file name without directory".to_owned());
    }
    Ok(text.to_owned())
}

/// One of some words.
pub fn one_of(text: &str, allowed: &[&str]) -> Result<String, Expected> {
    if allowed.contains(&text) { Ok(text.to_owned()) } else { Err(allowed.join(" or ")) }
}

/// Enablement selectors, and the same as JSON for the plugin's configuration.
pub fn enablement_selectors(text: &str) -> Result<(EnablementSelectors, serde_json::Value), Expected> {
    let expected = |why: &dyn std::fmt::Display| format!("a YAML list of {{podSelector, namespaceSelector}} ({why})");
    let selectors = EnablementSelectors::parse(text).map_err(|e| expected(&e))?;
    let json = yaml::document(text).map_err(|e| expected(&e))?;
    Ok((selectors, if json.is_null() { serde_json::json!([]) } else { json }))
}

/// Levels of the log by scope.
pub fn log_levels(text: &str) -> Result<logging::Levels, Expected> {
    logging::Levels::parse(text).map_err(|e| format!("a level, or a list of scope:level ({e})"))
}

/// Where pods come from: the directory; none means the API server.
pub fn pod_source(text: &str) -> Result<Option<PathBuf>, Expected> {
    let expected = || "kubernetes, or dir:PATH with an absolute path".to_owned();
    match text {
        "kubernetes" => Ok(None),
        _ => {
            let directory = text.strip_prefix("dir:").ok_or_else(expected)?;
            path(directory).map(Some).map_err(|_| expected())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        for (text, want) in [
            ("0600", Some(0o600)),
            ("0o640", Some(0o640)),
            ("384", Some(0o600)),
            ("0", Some(0)),
            ("00600", Some(0o600)),
        ] {
            assert_eq!(mode(text).ok(), want, "{text}");
        }
        for text in ["", "0o", "0o8", "0800", "512", "rw", "-1", "+1", "0x180", " 0600", "99999999999"] {
            assert!(mode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, want) in
            [("30s", 30_000), ("1m", 60_000), ("1m30s", 90_000), ("500ms", 500), ("0", 0), ("0s", 0), ("2h", 7_200_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(want)), "{text}");
        }
        for text in [
            "",
            "30",
            "s",
            "1d",
            "1.5h",
            "-1s",
            "1s ",
            "1m30",
            "99999999999999999999s",
            "18446744073709551615h",
            "8761h",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_rest() {
        assert_eq!(list(" a, b,,c ,"), ["a", "b", "c"]);
        assert!(list("").is_empty());
        assert_eq!(namespaces("a, kube-system,0"), Ok(["a", "kube-system", "0"].map(str::to_owned).to_vec()));
        for wrong in ["a b", "A", "-a", "a-", "a.b", "a,\u{e9}", &"a".repeat(64)] {
            assert!(namespaces(wrong).is_err(), "{wrong}");
        }
        assert_eq!(port("15014"), Ok(15014));
        assert!(port("65536").is_err() && port("-1").is_err() && port("").is_err());
        assert_eq!(pod_source("kubernetes"), Ok(None));
        assert_eq!(pod_source("dir:/pods"), Ok(Some("/pods".into())));
        assert!(pod_source("dir:").is_err() && pod_source("dir:pods").is_err() && pod_source("file:/x").is_err());
        assert!(path("run").is_err() && path("").is_err() && path("/run").is_ok());
        assert!(file_name("a/b").is_err() && file_name("10-a.conflist").is_ok());
    }
}
