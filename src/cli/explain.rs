//! `explain`: why a pod is in the mesh or not, question by question, and where it stands.

use super::columns::{Colour, Tone, cell, columns, duration, painted};
use super::page::{JSON, Page, Request};
use super::status;
use crate::config::Config;
use crate::config::option::{Takes, Variables, fill, specs};
use crate::config::table;
use crate::error::{Error, Kind, Result};
use crate::node::client;
use crate::node::view::{Explained, PodStatus};
use crate::pod::decision::{Action, Step};
use crate::pod::explanation::{Explanation, explain};
use crate::pod::object::Objects;
use crate::pod::types::PodName;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

const ABOUT: &str = "Walks the decision about a pod question by question, with the facts that answer each, and shows the \
                     settings that follow. NAMESPACE/NAME is a pod of this node: the running agent is asked, which also \
                     tells where the pod stands. POD_FILE is JSON or YAML and may hold the pod's Namespace too; the \
                     options then mean what they mean to the agent. Exit code 1 when there is no such pod, 3 when no \
                     agent answers.";

/// What is explained, and how.
#[derive(Debug)]
pub struct Explain {
    config: Config,
    json: bool,
    subject: Subject,
}

/// What is explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A pod of this node.
    Pod(PodName),
    /// The pod in this file.
    PodFile(PathBuf),
}

impl Subject {
    /// A file where there is one, else `NAMESPACE/NAME`.
    pub(super) fn parse(operand: &OsStr) -> Option<Self> {
        let path = Path::new(operand);
        if path.exists() {
            return Some(Subject::PodFile(path.to_owned()));
        }
        let plain =
            |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        let (namespace, name) = operand.to_str()?.split_once('/')?;
        let names_a_file = [".json", ".yaml", ".yml"].iter().any(|end| name.ends_with(end));
        (plain(namespace) && plain(name) && !namespace.starts_with('.') && !names_a_file)
            .then(|| Subject::Pod(PodName { namespace: namespace.to_owned(), name: name.to_owned() }))
    }
}

/// How it is called.
pub fn page() -> Page {
    let specs = [specs(JSON), specs(table::TABLE)].concat();
    let operand = Some(Takes::Value("POD_FILE"));
    Page { synopsis: "explain [OPTION…] (NAMESPACE/NAME | POD_FILE)", about: ABOUT, operand, specs }
}

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request<Explain>> {
    page().request(args, |arguments| {
        let [operand] = arguments.operands.as_slice() else {
            return Err(Error::of(
                Kind::Usage,
                "explain takes one NAMESPACE/NAME or POD_FILE; explain --help says more",
            ));
        };
        let subject = Subject::parse(operand).ok_or_else(|| {
            let message = format_args!("{operand:?} is neither a file that exists nor the NAMESPACE/NAME of a pod");
            Error::of(Kind::Usage, message)
        })?;
        let mut json = false;
        fill(JSON, &arguments.flags, variables, &mut json)?;
        let (config, _) = Config::read(&arguments.flags, variables)?;
        Ok(Explain { config, json, subject })
    })
}

impl Explain {
    /// What is to be explained.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The text about a pod of this node.
    pub fn of_pod(&self, pod: &PodName, colour: Colour) -> Result<String> {
        let PodName { namespace, name } = pod;
        let run_dir = self.config.run_dir();
        let body = client::get(run_dir, &format!("/explain?namespace={namespace}&name={name}"))?;
        let explained = client::decode(run_dir, &body)?;
        Ok(self.text(&explained, colour))
    }

    /// The text about the one pod among `objects`.
    pub fn of_objects(&self, objects: &Objects, colour: Colour) -> Result<String> {
        let (pod, labels) = objects.only_pod()?;
        let explanation =
            explain(self.config.policy(), pod, &labels, self.config.pod_rules(), self.config.native_nftables());
        Ok(self.text(&Explained { explanation: Some(explanation), pod: None, steps: Vec::new() }, colour))
    }

    fn text(&self, explained: &Explained, colour: Colour) -> String {
        if self.json {
            return serde_json::to_string(explained).unwrap_or_default() + "\n";
        }
        let decision = explained.explanation.as_ref().map(|explanation| decision(explanation, colour));
        let standing = explained.pod.as_ref().map(|pod| standing(pod, &explained.steps, colour));
        decision.into_iter().chain(standing).collect::<Vec<_>>().join("\n")
    }
}

fn decision(explanation: &Explanation, colour: Colour) -> String {
    let (word, tone) = match explanation.action {
        Action::Ambient => ("in the ambient mesh", Tone::Good),
        Action::Sidecar => ("redirected to its sidecar", Tone::Good),
        Action::None => ("left alone", Tone::Doubtful),
    };
    let Explanation { namespace, name, reason, .. } = explanation;
    let mut text = format!("{namespace}/{name} is {}: {reason}\n", painted(word, tone, colour));
    text += &steps(&explanation.steps, colour);
    if !explanation.settings.is_empty() {
        text += "\nSettings of its rules\n";
        let rows = explanation.settings.iter().map(|setting| {
            let source = cell(format!("({})", setting.source), Tone::Faint);
            vec![cell(&setting.name, Tone::Plain), cell(&setting.value, Tone::Plain), source]
        });
        text += &columns("  ", &rows.collect::<Vec<_>>(), colour);
    }
    for warning in &explanation.warnings {
        text += &format!("{} {warning}\n", painted("warning:", Tone::Bad, colour));
    }
    text
}

fn standing(pod: &PodStatus, facts: &[Step], colour: Colour) -> String {
    let (word, tone) = status::state(pod.state);
    let PodStatus { namespace, name, reason, seconds, .. } = pod;
    let since = duration(*seconds);
    let state = painted(word, tone, colour);
    format!("{namespace}/{name} on this node: {state} for {since}: {reason}\n{}", steps(facts, colour))
}

fn steps(steps: &[Step], colour: Colour) -> String {
    let rows = steps.iter().map(|step| {
        let answer = if step.answer { "yes" } else { "no" };
        vec![cell(&step.question, Tone::Plain), cell(answer, Tone::Plain), cell(&step.facts, Tone::Faint)]
    });
    columns("  ", &rows.collect::<Vec<_>>(), colour)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_or_a_file() {
        let pod = |namespace: &str, name: &str| {
            Some(Subject::Pod(PodName { namespace: namespace.to_owned(), name: name.to_owned() }))
        };
        for (operand, want) in [
            ("default/web-0", pod("default", "web-0")),
            ("a/b.c", pod("a", "b.c")),
            ("/nowhere/pod", None),
            ("./pod", None),
            ("no-such-dir/pod.yaml", None),
            ("web", None),
            ("a/", None),
            ("/b", None),
            ("a/b/c", None),
            ("a/b?x", None),
            ("", None),
            ("/dev/null", Some(Subject::PodFile("/dev/null".into()))),
        ] {
            assert_eq!(Subject::parse(OsStr::new(operand)), want, "{operand}");
        }
    }
}
