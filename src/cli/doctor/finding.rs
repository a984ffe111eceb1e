//! What a check found, and the report of all.

use crate::cli::columns::{Colour, Tone, cell, columns, painted};
use serde::Serialize;
use std::fmt::Display;

/// How serious it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it has to be.
    Ok,
    /// Works, but may not in a case that the text names.
    Warn,
    /// Does not work.
    Fail,
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at; the same in every report.
    pub check: String,
    /// How it is.
    pub result: Grade,
    /// What was found.
    pub finding: String,
    /// What to do, unless all is well.
    pub remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &str, finding: &dyn Display) -> Self {
        Self::new(check, Grade::Ok, finding, None)
    }

    pub(super) fn warn(check: &str, finding: &dyn Display, remedy: &dyn Display) -> Self {
        Self::new(check, Grade::Warn, finding, Some(remedy))
    }

    pub(super) fn fail(check: &str, finding: &dyn Display, remedy: &dyn Display) -> Self {
        Self::new(check, Grade::Fail, finding, Some(remedy))
    }

    fn new(check: &str, result: Grade, finding: &dyn Display, remedy: Option<&dyn Display>) -> Self {
        let (check, remedy) = (check.to_owned(), remedy.map(ToString::to_string));
        Finding { check, result, finding: finding.to_string(), remedy }
    }
}

/// All findings, in the order of the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report(pub Vec<Finding>);

impl Report {
    /// Whether nothing failed.
    pub fn is_healthy(&self) -> bool {
        self.count(Grade::Fail) == 0
    }

    fn count(&self, grade: Grade) -> usize {
        self.0.iter().filter(|finding| finding.result == grade).count()
    }

    /// One line each, and a sum.
    pub fn text(&self, colour: Colour) -> String {
        let rows = self.0.iter().map(|Finding { check, result, finding, remedy }| {
            let (word, tone) = match result {
                Grade::Ok => ("ok", Tone::Good),
                Grade::Warn => ("warn", Tone::Doubtful),
                Grade::Fail => ("fail", Tone::Bad),
            };
            let remedy = remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
            vec![cell(word, tone), cell(format!("{check}: {finding}{remedy}"), Tone::Plain)]
        });
        let (ok, warn, fail) = (self.count(Grade::Ok), self.count(Grade::Warn), self.count(Grade::Fail));
        let tone = if fail > 0 { Tone::Bad } else { Tone::Plain };
        let sum = painted(&format!("{ok} ok, {warn} to look at, {fail} failed"), tone, colour);
        format!("{}{sum}\n", columns("", &rows.collect::<Vec<_>>(), colour))
    }

    /// The same for scripts, on one line. Keys may be added; those that are there keep their meaning.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Shape<'a> {
            healthy: bool,
            checks: &'a [Finding],
        }
        let shape = Shape { healthy: self.is_healthy(), checks: &self.0 };
        serde_json::to_string(&shape).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(report.text(Colour::Off), include_str!("../../../test-fixtures/tools/doctor.txt"));
        assert!(!report.is_healthy());
        assert!(Report(report.0[..2].to_vec()).is_healthy());
        assert_eq!(
            Report(vec![Finding::ok("agent", &"ready")]).json(),
            "{\"healthy\":true,\"checks\":[{\"check\":\"agent\",\"result\":\"ok\",\"finding\":\"ready\",\"remedy\":null}]}\n"
        );
    }
}
