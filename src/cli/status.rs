//! `status`: the pods of this node and where they stand, as the running agent says.

use super::columns::{Cell, Colour, Tone, cell, columns, duration, painted};
use super::page::{Page, Request};
use crate::config::option::{Name, Row, Section, Spec, Takes, Variables, fill, specs};
use crate::config::table::RUN_DIR;
use crate::config::value;
use crate::error::Result;
use crate::node::client;
use crate::node::view::{PodState, PodStatus, Status as View};
use crate::sys::run_dir::RunDir;
use std::ffi::OsString;

const ABOUT: &str = "Lists the pods of this node: how they stand, for how long, their addresses, and why. Asks the agent \
                     over its socket. Exit code 0 only when all is well: the agent is ready, a ztunnel is connected in \
                     ambient mode, every pod file can be read, and every pod that should be in the mesh is enrolled; \
                     1 when not; 3 when no agent answers.";

/// Whose status, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    run_dir: RunDir,
    /// `--json`.
    pub json: bool,
    /// `--watch`.
    pub watch: bool,
}

const fn switch(name: &'static str, help: &'static str) -> Spec {
    Spec { name: Name::FlagOnly(name), takes: Takes::Switch, default: "", section: Section::Command, help }
}

const TABLE: &[Row<Status>] = &[
    Row {
        spec: switch("json", "Print the agent's answer as JSON, on one line."),
        set: |status, value| {
            status.json = value::boolean(value)?;
            Ok(())
        },
    },
    Row {
        spec: switch("watch", "Go on: show the status again whenever it changes, until interrupted."),
        set: |status, value| {
            status.watch = value::boolean(value)?;
            Ok(())
        },
    },
    Row {
        spec: RUN_DIR,
        set: |status, value| {
            status.run_dir = RunDir::new(value::path(value)?);
            Ok(())
        },
    },
];

/// How it is called.
pub fn page() -> Page {
    Page { synopsis: "status [OPTION…]", about: ABOUT, operand: None, specs: specs(TABLE) }
}

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request<Status>> {
    page().request(args, |arguments| {
        let mut status = Status::default();
        fill(TABLE, &arguments.flags, variables, &mut status)?;
        Ok(status)
    })
}

/// One look.
#[derive(Debug)]
pub struct Look {
    /// What is printed.
    pub text: String,
    /// Whether all is well.
    pub well: bool,
    /// The same for two looks between which nothing has happened.
    pub essence: View,
}

impl Status {
    /// Asks the agent. Fails with `NoAgent` when none answers.
    pub fn look(&self, colour: Colour) -> Result<Look> {
        let body = client::get(&self.run_dir, "/status")?;
        let mut view: View = client::decode(&self.run_dir, &body)?;
        let text = if self.json { format!("{}\n", String::from_utf8_lossy(&body)) } else { table(&view, colour) };
        let well = is_well(&view);
        for pod in &mut view.pods {
            pod.seconds = 0;
        }
        Ok(Look { text, well, essence: view })
    }
}

/// Whether nothing is left to be done.
pub fn is_well(view: &View) -> bool {
    let settled =
        |pod: &PodStatus| matches!(pod.state, PodState::None | PodState::Enrolled) && !pod.preceded && !pod.unheard;
    view.ready
        && view.unread.is_empty()
        && (!view.ambient || !view.ztunnels.is_empty())
        && view.pods.iter().all(settled)
}

/// A state in one word, and how it is meant.
pub fn state(state: PodState) -> (&'static str, Tone) {
    match state {
        PodState::None => ("none", Tone::Faint),
        PodState::Waiting => ("waiting", Tone::Doubtful),
        PodState::Applying => ("applying", Tone::Doubtful),
        PodState::Pending => ("pending", Tone::Doubtful),
        PodState::Enrolled => ("enrolled", Tone::Good),
        PodState::Removing => ("removing", Tone::Doubtful),
        PodState::Lost => ("lost", Tone::Bad),
    }
}

/// The status for people.
pub fn table(view: &View, colour: Colour) -> String {
    let mut text = String::new();
    if !view.pods.is_empty() {
        let heads = ["NAMESPACE", "NAME", "STATE", "FOR", "ADDRESSES", "WHY"];
        let mut rows = vec![heads.map(|head| cell(head, Tone::Faint)).to_vec()];
        let mut pods: Vec<&PodStatus> = view.pods.iter().collect();
        pods.sort_by_key(|pod| (&pod.namespace, &pod.name));
        rows.extend(pods.into_iter().map(row));
        text += &columns("", &rows, colour);
        text.push('\n');
    }
    text += &format!("{}\n", summary(view));
    let said = |what: &'static str| move |text: &String| vec![cell(what, Tone::Bad), cell(text, Tone::Plain)];
    let lines = view.reasons.iter().map(said("not ready:")).chain(view.unread.iter().map(said("not read:")));
    text += &columns("", &lines.collect::<Vec<_>>(), colour);
    if let Some(words) = &view.probers {
        text += &format!("counted as the kubelet: {words}\n");
    }
    if let Some(words) = &view.no_ztunnel {
        text += &format!("{}\n", painted(words, Tone::Bad, colour));
    }
    text
}

fn row(pod: &PodStatus) -> Vec<Cell> {
    let ips: Vec<String> = pod.ips.iter().map(ToString::to_string).collect();
    let (word, tone) = state(pod.state);
    let tone = if pod.preceded || pod.unheard { Tone::Doubtful } else { tone };
    let texts = [pod.namespace.as_str(), pod.name.as_str()].map(|text| cell(text, Tone::Plain));
    let rest = [duration(pod.seconds), ips.join(","), pod.reason.clone()].map(|text| cell(text, Tone::Plain));
    texts.into_iter().chain([cell(word, tone)]).chain(rest).collect()
}

/// How many pods stand how, in one line.
fn summary(view: &View) -> String {
    let count = |wanted: PodState| view.pods.iter().filter(|pod| pod.state == wanted).count();
    let parts = [
        (count(PodState::Enrolled), "enrolled"),
        (count(PodState::Pending), "pending"),
        (count(PodState::Applying), "applying"),
        (count(PodState::Waiting), "waiting"),
        (count(PodState::Removing), "removing"),
        (count(PodState::Lost), "lost"),
        (count(PodState::None), "not in the mesh"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let pods = match view.pods.len() {
        0 => "no pods".to_owned(),
        1 => format!("1 pod: {}", parts.collect::<String>()),
        n => format!("{n} pods: {}", parts.collect::<Vec<_>>().join(", ")),
    };
    let agent = if view.ready { "ready" } else { "not ready" };
    let mode =
        if view.ambient { format!("ztunnels: {}", view.ztunnels.len()) } else { "ambient mode is off".to_owned() };
    format!("{pods}; {mode}; agent {}: {agent}; source: {}", view.version, view.source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::view::ZtunnelStatus;

    fn view() -> View {
        let pod = |namespace: &str, name: &str, state, seconds, ips: &[&str], reason: &str| PodStatus {
            uid: name.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            state,
            reason: reason.to_owned(),
            seconds,
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            host_network: false,
            netns: None,
            redirection: None,
            preceded: false,
            unheard: false,
        };
        View {
            version: "1.2.3".to_owned(),
            ambient: true,
            source: "the API server".to_owned(),
            ready: true,
            reasons: vec![],
            unread: vec![],
            no_ztunnel: None,
            probers: None,
            ztunnels: vec![ZtunnelStatus { connection: 1, snapshot: true, acknowledged: 1 }],
            pods: vec![
                pod("shop", "web-0", PodState::Enrolled, 192, &["10.0.0.7", "fd00::7"], "rules are in place"),
                pod("kube-system", "dns", PodState::None, 90_061, &["10.0.0.2"], "its namespace is excluded"),
            ],
        }
    }

    #[test]
    fn a_table_for_people() {
        let want = include_str!("../../test-fixtures/tools/status.txt");
        assert_eq!(table(&view(), Colour::Off), want);
        let coloured = table(&view(), Colour::On);
        assert!(coloured.contains("\x1b[32menrolled\x1b[0m"), "{coloured}");
    }

    #[test]
    fn well_means_that_nothing_is_left_to_be_done() {
        assert!(is_well(&view()));
        let spoil = |change: fn(&mut View)| {
            let mut view = view();
            change(&mut view);
            is_well(&view)
        };
        assert!(!spoil(|view| view.ready = false));
        assert!(!spoil(|view| view.ztunnels.clear()));
        assert!(!spoil(|view| view.unread.push("pods/a.yaml: not YAML".to_owned())));
        assert!(spoil(|view| {
            view.ztunnels.clear();
            view.ambient = false;
        }));
        assert!(spoil(|view| view.pods.clear()));
        assert!(!spoil(|view| view.pods[0].state = PodState::Lost));
        assert!(!spoil(|view| view.pods[0].state = PodState::Pending));
    }

    #[test]
    fn trouble_is_said_below_the_table() {
        let mut view = view();
        view.ready = false;
        view.reasons = vec!["installation: waiting".to_owned(), "host rules: no".to_owned()];
        view.unread = vec!["pods/a.yaml: not YAML".to_owned()];
        view.ztunnels.clear();
        view.probers = Some("any process of the host".to_owned());
        view.no_ztunnel = Some("no ztunnel is connected on z.sock".to_owned());
        view.pods.clear();
        assert_eq!(
            table(&view, Colour::Off),
            "no pods; ztunnels: 0; agent 1.2.3: not ready; source: the API server\n\
             not ready:  installation: waiting\nnot ready:  host rules: no\n\
             not read:   pods/a.yaml: not YAML\ncounted as the kubelet: any process of the host\nno ztunnel is connected on z.sock\n"
        );
    }
}
