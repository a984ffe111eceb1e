//! Scopes and their levels (`--log_output_level`).

use crate::error::Result;
use crate::invalid;
use log::LevelFilter;

/// A part of the program whose level can be set alone, as in Istio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The agent.
    Agent,
    /// The plugin.
    Plugin,
    /// The front door, tools, and the libraries that we use.
    Default,
}

/// The path of a module of this crate, which is the target of what it logs.
macro_rules! module {
    ($path:literal) => {
        concat!(env!("CARGO_CRATE_NAME"), $path)
    };
}

/// The scopes of our modules; the longest path that a module's begins with counts.
pub(super) const MODULES: [(&str, Scope); 6] = [
    (module!("::"), Scope::Agent),
    (module!("::cli"), Scope::Default),
    (module!("::cli::plugin"), Scope::Plugin),
    (module!("::cni"), Scope::Plugin),
    (module!("::config"), Scope::Default),
    (module!("::logging"), Scope::Default),
];

impl Scope {
    /// The scope of a record with this target.
    pub(super) fn of(target: &str) -> Self {
        let fitting = MODULES.iter().filter(|(path, _)| target.starts_with(path));
        fitting.max_by_key(|(path, _)| path.len()).map_or(Scope::Default, |(_, scope)| *scope)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Scope::Agent => "cni-agent",
            Scope::Plugin => "cni-plugin",
            Scope::Default => "default",
        }
    }
}

/// The least severe level that each scope still shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    /// Scope `cni-agent`.
    pub agent: LevelFilter,
    /// Scope `cni-plugin`.
    pub plugin: LevelFilter,
    /// Scope `default`: everything else.
    pub default: LevelFilter,
}

impl Default for Levels {
    fn default() -> Self {
        Levels { agent: LevelFilter::Info, plugin: LevelFilter::Info, default: LevelFilter::Info }
    }
}

impl Levels {
    /// Parses a comma list of `scope:level`, or of a bare level for scope `default`. Scope `all` is every scope;
    /// scopes that are not known are ignored, as people's manifests name those of Istio.
    pub fn parse(text: &str) -> Result<Self> {
        let mut levels = Levels::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (scope, level) = item.rsplit_once(':').unwrap_or(("default", item));
            let level = parse_level(level).ok_or_else(|| {
                invalid!("level {level:?} in {item:?} is not one of debug, info, warn, error, fatal, none")
            })?;
            match scope {
                "cni-agent" => levels.agent = level,
                "cni-plugin" => levels.plugin = level,
                "default" => levels.default = level,
                "all" => levels = Levels { agent: level, plugin: level, default: level },
                _ => {}
            }
        }
        Ok(levels)
    }

    pub(super) fn of(&self, scope: Scope) -> LevelFilter {
        match scope {
            Scope::Agent => self.agent,
            Scope::Plugin => self.plugin,
            Scope::Default => self.default,
        }
    }
}

/// A level by its name in options and configurations.
pub fn parse_level(text: &str) -> Option<LevelFilter> {
    match text {
        "debug" => Some(LevelFilter::Debug),
        "info" => Some(LevelFilter::Info),
        "warn" => Some(LevelFilter::Warn),
        "error" => Some(LevelFilter::Error),
        // Nothing of ours is fatal: that is a panic.
        "fatal" | "none" => Some(LevelFilter::Off),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_parsed() {
        use LevelFilter::{Debug, Error, Info, Off, Warn};
        let check = |text: &str, agent, plugin, default| {
            assert_eq!(Levels::parse(text).unwrap(), Levels { agent, plugin, default }, "{text}");
        };
        check("", Info, Info, Info);
        check("default:info", Info, Info, Info);
        check("debug", Info, Info, Debug);
        check("all:warn", Warn, Warn, Warn);
        check("all:none,cni-agent:debug", Debug, Off, Off);
        check(" cni-plugin:fatal , ads:debug,default:error", Info, Off, Error);
        for bad in ["loud", "all:", "cni-agent:trace", "nobody:loud", "default:Info"] {
            let text = Levels::parse(bad).unwrap_err().to_string();
            assert!(text.contains("not one of debug, info, warn, error, fatal, none"), "{text}");
        }
    }

    #[test]
    fn scopes_follow_from_modules() {
        let check = |target: &str, scope: &str| assert_eq!(Scope::of(target).name(), scope, "{target}");
        check(module_path!(), "default");
        check("ferrule", "default");
        check("ferrule::node::run", "cni-agent");
        check("ferrule::zds", "cni-agent");
        check("ferrule::cni", "cni-plugin");
        check("ferrule::cni::plugin", "cni-plugin");
        check("ferrule::cli::plugin", "cni-plugin");
        check("ferrule::cli::iptables", "default");
        check("rustls::client", "default");
        check("ferrules::cni", "default");
    }
}
