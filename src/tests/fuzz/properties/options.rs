//! What people write: options, variables, levels.

use super::text;
use ferrule::cli::page::Request;
use ferrule::cli::{agent, rules};
use ferrule::config::option::Variables;
use ferrule::config::value;
use ferrule::error::Kind;
use ferrule::logging::Levels;
use std::ffi::OsString;

/// Arguments and variables, one a line, parted by an empty line: a usage error or a whole configuration.
pub fn options(input: &[u8]) {
    let Some(input) = text(input) else { return };
    let (args, variables) = input.split_once("\n\n").unwrap_or((input, ""));
    let args: Vec<OsString> = args.lines().map(OsString::from).collect();
    let variables: Variables = variables.lines().filter_map(|line| line.split_once('=')).map(owned).collect();
    match agent::parse(&args, &variables) {
        Ok(Request::Help(text)) => assert!(text.contains("--ambient-enabled")),
        Ok(Request::Run((config, _))) => {
            match config.agent() {
                Ok(agent) => assert!(agent.site.run_dir.path().is_absolute() && agent.ztunnel_socket.is_absolute()),
                Err(e) => assert_eq!(e.kind(), Kind::Usage, "{e}"),
            }
            let install = config.install();
            assert!(install.net_dir.is_absolute() && install.bin_dir.is_absolute(), "{install:?}");
            let _ = (config.policy(), config.logging(), config.kube());
        }
        Err(e) => assert_eq!(e.kind(), Kind::Usage, "{e}"),
    }
    if let Err(e) = rules::parse(&args, &variables) {
        assert_eq!(e.kind(), Kind::Usage, "{e}");
    }
    for word in input.lines() {
        values(word);
    }
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn values(word: &str) {
    if let Ok(duration) = value::duration(word) {
        assert_eq!(value::duration(&format!("{}ms", duration.as_millis())), Ok(duration), "{word}");
    }
    if let Ok(mode) = value::mode(word) {
        assert!(mode <= 0o777, "{word}");
        assert_eq!((value::mode(&format!("0o{mode:o}")), value::mode(&mode.to_string())), (Ok(mode), Ok(mode)));
    }
    let list = value::list(word);
    assert!(list.iter().all(|entry| !entry.is_empty() && entry.trim() == entry));
    assert_eq!(value::list(&list.join(", ")), list);
    if let Ok(name) = value::file_name(word) {
        assert!(!name.contains('/'));
    }
    let _ = (value::boolean(word), value::port(word), value::host_path(word), value::pod_source(word));
    if let Ok(levels) = Levels::parse(word) {
        assert_eq!(Levels::parse(&format!("{word},")).unwrap(), levels, "{word}");
    }
}
