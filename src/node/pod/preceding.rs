//! Rules of others in a pod's namespace to which its packets come before they come to ours.
//!
//! Ours are appended: what was there first stays first. What somebody puts before them later may lead traffic past the
//! mesh. It is not ours to move (whoever put it there would put it back, and traffic would flow in between), but people
//! are told.

use crate::rules::inpod::Settings;
use crate::rules::preceding::Preceding;

/// How a pod's rules stand with those of others, in one namespace.
#[derive(Debug, Default)]
pub(in crate::node) struct PrecedingRules {
    /// The rules before ours when ours were put in with these settings; after a restart, when they were first seen.
    first: Option<(Settings, Vec<Preceding>)>,
    /// What came before ours since, in words.
    by: Option<String>,
}

/// What a look at the rules has changed.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::node) enum Change {
    /// Nothing that people have to know.
    Nothing,
    /// Others came before ours.
    Came(String),
    /// They are gone again.
    Over(String),
}

impl PrecedingRules {
    /// What came before ours, in words.
    pub fn by(&self) -> Option<&str> {
        self.by.as_deref()
    }

    /// The rules of these settings are in place, behind these of others.
    pub fn note(&mut self, settings: &Settings, preceding: Vec<Preceding>) -> Change {
        let Some((_, first)) = self.first.as_ref().filter(|(with, _)| with == settings) else {
            *self = PrecedingRules { first: Some((settings.clone(), preceding)), by: None };
            return Change::Nothing;
        };
        let new: Vec<_> = Preceding::newcomers(first, &preceding).iter().map(ToString::to_string).collect();
        let by = (!new.is_empty()).then(|| {
            format!("somebody put {} before ours: what that accepts or redirects passes by the mesh", new.join(", "))
        });
        match (std::mem::replace(&mut self.by, by.clone()), by) {
            (past, Some(message)) if past.as_ref() != Some(&message) => Change::Came(message),
            (Some(past), None) => Change::Over(past),
            _ => Change::Nothing,
        }
    }
}
