//! Measures the built executable against yardsticks that are run beside it: medians of pairs, so that a busy machine
//! slows down both sides.

#![allow(clippy::unwrap_used, reason = "what cannot be measured must not look measured")]
#![allow(missing_docs, reason = "read with its few callers")]

pub mod cluster;
mod node;
mod pairs;
mod rows;
mod ztunnel;

use std::fmt::Write as _;
use std::path::PathBuf;

/// What is measured, and how long.
#[derive(Debug, Clone)]
pub struct Options {
    /// The executable.
    pub ferrule: PathBuf,
    /// A few pairs only: shows that everything can be measured, not how fast it is.
    pub quick: bool,
    /// Only what has this name; everything otherwise.
    pub only: Option<String>,
}

/// A line of the table.
#[derive(Debug, Clone)]
pub struct Row {
    /// What was measured, and for a ratio the yardstick.
    pub name: &'static str,
    /// The number, with its unit, and what it was made of.
    pub value: String,
    /// What it should be at most; none for what is only to be known.
    pub goal: Option<f64>,
    /// The number that is compared with the goal.
    pub number: f64,
}

impl Row {
    pub fn is_met(&self) -> bool {
        self.goal.is_none_or(|goal| self.number <= goal)
    }
}

/// Measures.
pub fn run(options: &Options) -> Vec<Row> {
    let asked = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    rows::ALL.iter().filter(|(name, _)| asked(name)).flat_map(|(_, measure)| measure(options)).collect()
}

/// The rows as text: name, value, goal, and whether it is met.
pub fn table(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let goal = row.goal.map(|goal| format!("<= {goal}")).unwrap_or_default();
        let verdict = if row.goal.is_none() {
            ""
        } else if row.is_met() {
            "ok"
        } else {
            "over"
        };
        [row.name.to_owned(), row.value.clone(), goal, verdict.to_owned()]
    };
    let lines: Vec<_> = rows.iter().map(cells).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut text = String::new();
    for [name, value, goal, verdict] in &lines {
        let [a, b, c] = widths;
        let line = format!("{name:a$}  {value:b$}  {goal:c$}  {verdict}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
