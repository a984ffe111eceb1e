//! `rules`: the exact firewall input that would be applied to a pod, or to the host.

use super::explain;
use super::page::{Page, Request};
use crate::config::Config;
use crate::config::option::{Name, Row, Section, Spec, Takes, Variables, fill, specs};
use crate::config::table;
use crate::error::{Context, Error, Kind, Result};
use crate::pod::decision::{Action, decide};
use crate::pod::object::Objects;
use crate::pod::overrides;
use crate::pod::redirection;
use crate::rules::family::Family;
use crate::rules::program::Purpose;
use crate::rules::{host, inpod, nftables, render, ruleset::RuleSet, sidecar};
use std::ffi::OsString;
use std::path::PathBuf;

const ABOUT: &str = "Prints the exact input of iptables-restore (or nft -f) that would be loaded for a pod, or for the \
                     host with --host, and touches nothing. POD_FILE is JSON or YAML and may hold the pod's Namespace too. \
                     The other options mean what they mean to the agent. Exit code 1, with the reason, when no \
                     rules apply.";

/// What only this command takes.
#[derive(Debug, Clone, Default)]
struct Own {
    family: Option<Family>,
    backend: Backend,
    host: bool,
    counters: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Backend {
    #[default]
    Iptables,
    Nftables,
}

const fn own(name: &'static str, takes: Takes, help: &'static str) -> Spec {
    Spec { name: Name::FlagOnly(name), takes, default: "", section: Section::Command, help }
}

const OWN: &[Row<Own>] = &[
    Row {
        spec: own(
            "family",
            Takes::OneOf(&["ipv4", "ipv6"]),
            "Only this family; without it, a line `# ipv4` or `# ipv6` precedes each family's part.",
        ),
        set: |own, value| {
            own.family = Some(match value {
                "ipv4" => Family::V4,
                "ipv6" => Family::V6,
                _ => return Err("ipv4 or ipv6".to_owned()),
            });
            Ok(())
        },
    },
    Row {
        spec: own(
            "backend",
            Takes::OneOf(&["iptables", "nftables"]),
            "Program that is to read them; without it, iptables.",
        ),
        set: |own, value| {
            own.backend = match value {
                "iptables" => Backend::Iptables,
                "nftables" => Backend::Nftables,
                _ => return Err("iptables or nftables".to_owned()),
            };
            Ok(())
        },
    },
    Row {
        spec: own("host", Takes::Switch, "The rules of the host instead of a pod's."),
        set: |own, value| {
            own.host = overrides::parse_bool(value).ok_or_else(|| "true or false".to_owned())?;
            Ok(())
        },
    },
    Row {
        spec: own(
            "counters",
            Takes::Switch,
            "Packets and bytes that our rules have counted in the network namespace at this path, given in place of the pod's file, or with --host in that in which this runs.",
        ),
        set: |own, value| {
            own.counters = overrides::parse_bool(value).ok_or_else(|| "true or false".to_owned())?;
            Ok(())
        },
    },
];

/// The subject whose rules are printed, and how.
#[derive(Debug)]
pub struct Rules {
    config: Config,
    family: Option<Family>,
    backend: Backend,
    subject: Subject,
    warnings: Vec<String>,
}

/// The subject whose rules are printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The host's.
    Host,
    /// The pod in this file.
    PodFile(PathBuf),
    /// What was counted in the network namespace at this path; `None`: in that in which this runs.
    Counters(Option<PathBuf>),
}

/// How it is called.
pub fn page() -> Page {
    let specs = [specs(OWN), specs(table::TABLE)].concat();
    let operand = Some(Takes::Value("POD_FILE"));
    Page { synopsis: "rules [OPTION…] (POD_FILE | --host)", about: ABOUT, operand, specs }
}

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request<Rules>> {
    page().request(args, |arguments| {
        let (config, mut remarks) = Config::read(&arguments.flags, variables)?;
        let mut own = Own::default();
        remarks.extend(fill(OWN, &arguments.flags, variables, &mut own)?);
        let warnings =
            remarks.into_iter().filter(|(level, _)| *level <= log::Level::Warn).map(|(_, text)| text).collect();
        let subject = match (own.host, arguments.operands.as_slice()) {
            (true, []) if own.counters => Subject::Counters(None),
            (false, [path]) if own.counters => Subject::Counters(Some(path.into())),
            (true, []) => Subject::Host,
            (false, [file]) if matches!(explain::Subject::parse(file), Some(explain::Subject::Pod(_))) => {
                let message = format_args!(
                    "rules takes a POD_FILE: the pod {file:?} is no file; write its object into one, or try explain"
                );
                return Err(Error::of(Kind::Usage, message));
            }
            (false, [file]) => Subject::PodFile(file.into()),
            _ => return Err(Error::of(Kind::Usage, "rules takes one POD_FILE, or --host; rules --help says more")),
        };
        Ok(Rules { config, family: own.family, backend: own.backend, subject, warnings })
    })
}

impl Rules {
    /// Says whose rules are asked for.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The text for the host.
    pub fn of_host(&self) -> Result<Answer> {
        if !self.config.policy().ambient_enabled {
            return Err(Error::new("no rules apply to the host: ambient mode is off (--ambient-enabled)"));
        }
        let settings = self.config.host_rules();
        self.answer(Purpose::Host, &[], self.ipv6(), |family| host::rules(&settings, family))
    }

    /// The text for the one pod among `objects`.
    pub fn of_pod(&self, objects: &Objects) -> Result<Answer> {
        let (pod, labels) = objects.only_pod()?;
        let decision = decide(self.config.policy(), pod, &labels);
        match decision.action {
            Action::None => Err(Error::new(format_args!("no rules apply: {}", decision.reason))),
            Action::Sidecar => redirection::of(pod).and_then(|wanted| {
                let ipv6 = if wanted.ipv6(&pod.ips, self.backend == Backend::Nftables) {
                    Ok(())
                } else {
                    Err("the pod is not reached by IPv6")
                };
                self.answer(Purpose::Sidecar, &wanted.warnings, ipv6, |family| sidecar::rules(&wanted.settings, family))
            }),
            Action::Ambient => {
                let overrides = overrides::parse(&pod.annotations);
                let settings = overrides.over(self.config.pod_rules());
                self.answer(Purpose::Ambient, &overrides.warnings, self.ipv6(), |family| {
                    inpod::rules(&settings, family)
                })
            }
        }
        .with_context(|| format!("pod {}", pod.name))
    }

    /// Whether the agent programs IPv6, or why not.
    fn ipv6(&self) -> std::result::Result<(), &'static str> {
        if self.config.ipv6() { Ok(()) } else { Err("IPv6 is off (--ambient-ipv6)") }
    }

    fn answer(
        &self,
        purpose: Purpose,
        more_warnings: &[String],
        ipv6: std::result::Result<(), &str>,
        rules: impl Fn(Family) -> RuleSet,
    ) -> Result<Answer> {
        let warnings = [&self.warnings, more_warnings].concat();
        let families = match (self.family, ipv6) {
            (Some(Family::V6), Err(reason)) => {
                return Err(Error::new(format_args!("no IPv6 rules apply: {reason}")));
            }
            (Some(family), _) => vec![family],
            (None, Err(_)) => vec![Family::V4],
            (None, Ok(())) => vec![Family::V4, Family::V6],
        };
        let sets: Vec<RuleSet> = families.into_iter().map(rules).collect();
        let text = match (self.backend, self.family) {
            (Backend::Nftables, _) => nftables::text::script(&nftables::tables(purpose, &sets)),
            (Backend::Iptables, Some(_)) => sets.iter().map(render::restore).collect(),
            (Backend::Iptables, None) => sets.iter().map(named).collect(),
        };
        Ok(Answer { text, warnings })
    }
}

/// The input of one family, after a line that says which.
fn named(set: &RuleSet) -> String {
    let family = if set.family == Family::V4 { "ipv4" } else { "ipv6" };
    format!("# {family}\n{}", render::restore(set))
}

/// What is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// On standard output.
    pub text: String,
    /// On standard error, a line each.
    pub warnings: Vec<String>,
}
