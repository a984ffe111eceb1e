//! `doctor`: how the examination of a node is called, and how its report is shown.

use super::columns::{Colour, Tone, cell, columns, painted};
use super::page::{JSON, Page, Request};
use crate::config::option::{Variables, fill, specs};
use crate::config::{Config, table};
use crate::doctor::{Grade, Options, Report, examine};
use crate::error::Result;
use std::ffi::OsString;
use std::sync::Arc;

const ABOUT: &str = "Checks the node, one line each, with a remedy where something is wrong: capabilities, kernel \
                     modules, the packet filter, the CNI configuration and its chain, the plugin, the agent and its \
                     sockets, ztunnel, the API server. Nothing is changed. The other options mean what they mean to the \
                     agent; give those that the agent was given. Exit code 1 when a check fails; warnings are none.";

/// An examination, and how it is shown.
#[derive(Debug)]
pub struct Doctor {
    options: Arc<Options>,
    json: bool,
}

/// How it is called.
pub fn page() -> Page {
    let specs = [specs(JSON), specs(table::TABLE)].concat();
    Page { synopsis: "doctor [OPTION…]", about: ABOUT, operand: None, specs }
}

/// Parses the arguments that follow the command.
pub fn parse(args: &[OsString], variables: &Variables) -> Result<Request<Doctor>> {
    page().request(args, |arguments| {
        let mut json = false;
        fill(JSON, &arguments.flags, variables, &mut json)?;
        let (config, _) = Config::read(&arguments.flags, variables)?;
        Ok(Doctor { options: Arc::new(config.doctor()), json })
    })
}

impl Doctor {
    /// Examines the node.
    pub fn examine(&self) -> Result<Report> {
        examine(&self.options)
    }

    /// The report as it is to be shown.
    pub fn text(&self, report: &Report, colour: Colour) -> String {
        if self.json { report.json() } else { text(report, colour) }
    }
}

/// A line for each finding, and a sum.
fn text(report: &Report, colour: Colour) -> String {
    let rows = report.0.iter().map(|finding| {
        let (word, tone) = match finding.result {
            Grade::Ok => ("ok", Tone::Good),
            Grade::Warn => ("warn", Tone::Doubtful),
            Grade::Fail => ("fail", Tone::Bad),
        };
        let remedy = finding.remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
        vec![cell(word, tone), cell(format!("{}: {}{remedy}", finding.check, finding.finding), Tone::Plain)]
    });
    let (ok, warn, fail) = (report.count(Grade::Ok), report.count(Grade::Warn), report.count(Grade::Fail));
    let tone = if fail > 0 { Tone::Bad } else { Tone::Plain };
    let sum = painted(&format!("{ok} ok, {warn} to look at, {fail} failed"), tone, colour);
    format!("{}{sum}\n", columns("", &rows.collect::<Vec<_>>(), colour))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Finding;

    #[test]
    fn a_line_each_and_the_same_as_json() {
        let report = Report(vec![
            Finding::ok("capabilities", &"CAP_DAC_OVERRIDE, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_PTRACE, CAP_SYS_ADMIN"),
            Finding::warn(
                "kernel modules",
                &"xt_TPROXY is missing, needed for sidecars\nwith TPROXY",
                &"load it on the host (modprobe xt_TPROXY), or use a kernel that has it",
            ),
            Finding::fail(
                "plugin",
                &"/host/opt/cni/bin/istio-cni is missing",
                &"K3s has plugins in /var/lib/rancher/k3s/data/cni: name it with --cni-bin-dir",
            ),
        ]);
        assert_eq!(text(&report, Colour::Off), include_str!("../../test-fixtures/tools/doctor.txt"));
        assert!(!report.is_healthy());
        assert!(Report(report.0[..2].to_vec()).is_healthy());
        assert_eq!(
            Report(vec![Finding::ok("agent", &"ready")]).json(),
            "{\"healthy\":true,\"checks\":[{\"check\":\"agent\",\"result\":\"ok\",\"finding\":\"ready\",\"remedy\":null}]}\n"
        );
    }
}
