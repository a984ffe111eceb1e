//! Rules of others in a pod's namespace to which its packets come before they come to ours.
//!
//! Ours are appended: what was there first stays first. What somebody puts before them later may lead traffic past the
//! mesh. It is not ours to move (whoever put it there would put it back, and traffic would flow in between), but people
//! are told.

use super::State;
use super::pods::Entry;
use crate::node::event::Action;
use crate::node::publish::event_recorder::PodEvent;
use crate::rules::inpod::Settings;
use crate::rules::preceding::Preceding;
use crate::sys::netns::NetnsId;

/// How a pod's rules stand with those of others.
#[derive(Debug, Default)]
pub(super) struct PrecedingRules {
    /// The rules before ours when ours were put into this namespace; after a restart, when they were first looked at.
    first: Option<(NetnsId, Settings, Vec<Preceding>)>,
    /// What came before ours since, in words.
    pub by: Option<String>,
}

impl State {
    /// The rules of these settings are in place, behind these of others.
    pub(super) fn note_preceding(&mut self, entry: &mut Entry, settings: &Settings, preceding: Vec<Preceding>) {
        let Some(netns) = entry.rules.as_ref().map(|rules| rules.netns.id()) else { return };
        let preceded = &mut entry.preceded;
        let known = preceded.first.as_ref().filter(|(of, with, _)| (of, with) == (&netns, settings));
        let Some((_, _, first)) = known else {
            *preceded = PrecedingRules { first: Some((netns, settings.clone(), preceding)), by: None };
            return;
        };
        let new: Vec<_> = Preceding::newcomers(first, &preceding).iter().map(ToString::to_string).collect();
        let by = (!new.is_empty()).then(|| {
            format!("somebody put {} before ours: what that accepts or redirects passes by the mesh", new.join(", "))
        });
        let past = std::mem::replace(&mut preceded.by, by.clone());
        match (past, by) {
            (past, Some(message)) if past.as_ref() != Some(&message) => {
                log::warn!(uid = entry.uid.as_str(), pod:% = entry.name; "{message}");
                if self.config.cluster && entry.object.is_some() {
                    self.out.push(Action::Announce(PodEvent {
                        uid: entry.uid.clone(),
                        pod: entry.name.clone(),
                        warning: true,
                        reason: "RedirectionOvertaken",
                        component: "cni-agent",
                        message,
                    }));
                }
            }
            (Some(past), None) => {
                log::info!(uid = entry.uid.as_str(), pod:% = entry.name; "it is over: {past}");
            }
            _ => {}
        }
    }
}
