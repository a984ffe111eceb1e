//! What the checks found, and the report of it.

use serde::Serialize;
use std::fmt::Display;

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// It is as it has to be.
    Ok,
    /// It works, but may not in a case that the text names.
    Warn,
    /// It does not work.
    Fail,
}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at; the same in every report.
    pub check: String,
    /// How serious it is.
    pub result: Grade,
    /// What was found.
    pub finding: String,
    /// What to do, unless all is well.
    pub remedy: Option<String>,
}

impl Finding {
    /// Everything is as it has to be.
    pub fn ok(check: &str, finding: &dyn Display) -> Self {
        Self::new(check, Grade::Ok, finding, None)
    }

    /// It works, but may not in the case that the text names.
    pub fn warn(check: &str, finding: &dyn Display, remedy: &dyn Display) -> Self {
        Self::new(check, Grade::Warn, finding, Some(remedy))
    }

    /// It does not work.
    pub fn fail(check: &str, finding: &dyn Display, remedy: &dyn Display) -> Self {
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

    /// How many findings have this grade.
    pub fn count(&self, grade: Grade) -> usize {
        self.0.iter().filter(|finding| finding.result == grade).count()
    }

    /// The report as JSON on one line. Keys may be added; those that are there keep their meaning.
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
