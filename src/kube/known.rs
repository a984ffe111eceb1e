//! What a reflector knows, and what follows from what it hears: the pure half.

use super::status::Failure;
use std::collections::{HashMap, VecDeque};

/// Removed objects that are remembered, for events that come late.
const REMEMBERED: usize = 256;

/// The request that comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// List everything.
    List,
    /// Watch what follows a version.
    Watch {
        /// The version.
        from: String,
    },
}

/// How a watch ended.
#[derive(Debug)]
pub(super) enum End {
    /// The server closed it, as it does now and then.
    Closed,
    /// It was refused, broke off, or ended with an ERROR event.
    Failed(Failure),
    /// An event could not be decoded.
    Undecodable(String),
}

/// Which objects exist in which version. An object is known by a key that stays the same for as long as it is the same
/// thing to the caller.
#[derive(Debug, Default)]
pub(super) struct Known {
    objects: HashMap<Box<str>, Seen>,
    removed: VecDeque<(Box<str>, Version)>,
    /// Up to here everything is known; nothing before the first list.
    version: Option<String>,
    /// Counts the lists begun.
    round: u32,
    /// Objects that the list under way has had.
    listed: usize,
    /// The version at which an event could not be decoded.
    undecodable_after: Option<String>,
    /// The last list had lost so much that it did not count.
    doubted: bool,
}

#[derive(Debug)]
struct Seen {
    version: Version,
    round: u32,
    /// Only asked for: no list and no watch has told of this one.
    asked: bool,
}

/// Versions grow, and compare as numbers (Kubernetes KEP 5504). Should they ever not be numbers, what comes later is
/// newer.
#[derive(Debug, PartialEq, Eq)]
enum Version {
    Number(u64),
    Opaque(Box<str>),
}

impl Version {
    fn of(text: &str) -> Self {
        text.parse().map_or_else(|_| Version::Opaque(text.into()), Version::Number)
    }

    fn is_newer_than(&self, other: &Version) -> bool {
        match (self, other) {
            (Version::Number(this), Version::Number(other)) => this > other,
            _ => self != other,
        }
    }
}

impl Known {
    /// A list begins, from its first page.
    pub(super) fn begin_list(&mut self) {
        self.round += 1;
        self.listed = 0;
        self.removed.clear();
    }

    /// The list has this object. Returns whether that is news.
    pub(super) fn listed(&mut self, key: &str, version: &str) -> bool {
        let version = Version::of(version);
        let before = self.objects.get(key);
        let news = before.is_none_or(|seen| seen.version != version);
        self.listed += usize::from(before.is_none_or(|seen| seen.round != self.round));
        self.put(key, version, false);
        news
    }

    /// How many different objects the list under way has had.
    pub(super) fn listed_so_far(&self) -> usize {
        self.listed
    }

    /// The list has been read to its end. What it has lost, and of how many, if that is more than half: a server that
    /// starts, or was restored, may answer with little or nothing. Such a list does not count, the one that follows does.
    pub(super) fn doubt(&mut self) -> Option<(usize, usize)> {
        let known = || self.objects.values().filter(|seen| !seen.asked);
        let (all, lost) = (known().count(), known().filter(|seen| seen.round != self.round).count());
        self.doubted = !self.doubted && 2 * lost > all;
        self.doubted.then_some((lost, all))
    }

    /// The list is whole. Returns the keys of what is no longer there.
    pub(super) fn end_list(&mut self, version: String) -> Vec<String> {
        let (round, of_list) = (self.round, Version::of(&version));
        self.version = Some(version);
        self.undecodable_after = None;
        // One that was asked for while the list ran may be younger than the list, or may have ended before it.
        let stays = |seen: &Seen| seen.round == round && (!seen.asked || seen.version.is_newer_than(&of_list));
        self.objects.extract_if(|_, seen| !stays(seen)).map(|(key, _)| key.into()).collect()
    }

    /// A watch says that the object is there in this version. Returns whether that is news.
    pub(super) fn upserted(&mut self, key: &str, version: &str) -> bool {
        self.advance(version);
        self.is_there(key, version, false)
    }

    /// The object was asked for and is there in this version: that says nothing about others. Returns whether it is
    /// news.
    pub(super) fn introduced(&mut self, key: &str, version: &str) -> bool {
        self.is_there(key, version, true)
    }

    fn is_there(&mut self, key: &str, version: &str, asked: bool) -> bool {
        let version = Version::of(version);
        let before = self.objects.get(key).map(|seen| &seen.version);
        let removed = self.removed.iter().rfind(|(k, _)| **k == *key).map(|(_, version)| version);
        if before.into_iter().chain(removed).any(|v| !version.is_newer_than(v)) {
            return false;
        }
        self.put(key, version, asked);
        true
    }

    fn put(&mut self, key: &str, version: Version, asked: bool) {
        let seen = Seen { version, round: self.round, asked };
        match self.objects.get_mut(key) {
            Some(before) => {
                let proven = before.round == seen.round && !before.asked;
                *before = Seen { asked: asked && !proven, ..seen };
            }
            None => _ = self.objects.insert(key.into(), seen),
        }
    }

    /// A watch says that the object is gone. Returns whether that is news.
    pub(super) fn deleted(&mut self, key: &str, version: &str) -> bool {
        self.advance(version);
        let version = Version::of(version);
        // Of opaque versions each is newer than the other: then the later event counts.
        let stale = |seen: &Seen| seen.version.is_newer_than(&version) && !version.is_newer_than(&seen.version);
        if self.objects.get(key).is_some_and(stale) {
            return false;
        }
        if self.removed.len() == REMEMBERED {
            self.removed.pop_front();
        }
        self.removed.push_back((key.into(), version));
        self.objects.remove(key).is_some()
    }

    /// A watch says that nothing else happened up to this version.
    pub(super) fn bookmark(&mut self, version: &str) {
        self.advance(version);
    }

    /// What comes next, after a list that failed or at the start.
    pub(super) fn after_list(&self) -> Next {
        self.version.clone().map_or(Next::List, |from| Next::Watch { from })
    }

    /// What comes next, after a watch.
    pub(super) fn after_watch(&mut self, end: &End) -> Next {
        let list = match end {
            End::Closed => false,
            // 400: the server takes our version for no version.
            End::Failed(failure) => matches!(failure.status, Some(400 | 410)) || failure.version_too_new,
            // Once may be an accident on the way; twice at one place, and no watch leads past it.
            End::Undecodable(_) => {
                let here = self.version.clone();
                std::mem::replace(&mut self.undecodable_after, here) == self.version
            }
        };
        if list {
            self.version = None;
        }
        self.after_list()
    }

    fn advance(&mut self, version: &str) {
        let newer = |at: &String| Version::of(version).is_newer_than(&Version::of(at));
        if self.version.as_ref().is_none_or(newer) && !version.is_empty() {
            self.version = Some(version.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(items: &[(&str, &str)], version: &str) -> Known {
        let mut known = Known::default();
        known.begin_list();
        for (key, item) in items {
            assert!(known.listed(key, item));
        }
        assert!(known.end_list(version.into()).is_empty());
        known
    }

    fn watch(from: &str) -> Next {
        Next::Watch { from: from.into() }
    }

    #[test]
    fn lists_first_and_watches_from_there() {
        assert_eq!(Known::default().after_list(), Next::List);
        assert_eq!(listed(&[("a", "3")], "7").after_list(), watch("7"));
    }

    #[test]
    fn a_second_list_tells_what_was_missed() {
        let mut known = listed(&[("a", "1"), ("b", "2"), ("c", "3")], "3");
        known.begin_list();
        assert!(!known.listed("a", "1"), "unchanged");
        assert!(known.listed("b", "5"), "changed");
        assert!(known.listed("d", "6"), "new");
        assert_eq!(known.end_list("6".into()), ["c"]);
    }

    #[test]
    fn a_list_that_has_lost_more_than_half_is_confirmed_by_another() {
        let check = |before: &[&str], lists: &[&[&str]], doubts: &[Option<(usize, usize)>]| {
            let mut known = listed(&before.iter().map(|key| (*key, "1")).collect::<Vec<_>>(), "3");
            let found = lists.iter().map(|list| {
                known.begin_list();
                for key in *list {
                    known.listed(key, "1");
                }
                let doubt = known.doubt();
                if doubt.is_none() {
                    known.end_list("4".into());
                }
                doubt
            });
            assert_eq!(found.collect::<Vec<_>>(), doubts, "{before:?} {lists:?}");
        };
        check(&["a", "b"], &[&["a"]], &[None]);
        check(&["a", "b", "c"], &[&["a"], &["a"]], &[Some((2, 3)), None]);
        check(&["a"], &[&[], &["a"], &[], &[]], &[Some((1, 1)), None, Some((1, 1)), None]);
        check(&["a", "b", "c"], &[&[], &["a", "b"], &["a", "b"]], &[Some((3, 3)), None, None]);
        check(&[], &[&[], &["a"], &["b"], &["b"]], &[None, None, Some((1, 2)).filter(|_| false), None]);
    }

    #[test]
    fn a_list_that_starts_over_forgets_what_the_first_half_saw() {
        let mut known = listed(&[("a", "1")], "1");
        known.begin_list();
        assert!(known.listed("b", "2"));
        known.begin_list();
        assert!(!known.listed("a", "1"));
        assert_eq!(known.end_list("4".into()), ["b"], "told as there, so told as gone");
    }

    #[test]
    fn events_move_the_version_and_repetitions_are_no_news() {
        let mut known = listed(&[("a", "3")], "7");
        assert!(known.upserted("a", "8"));
        assert!(!known.upserted("a", "8"));
        known.bookmark("12");
        known.bookmark("12");
        assert_eq!(known.after_watch(&End::Closed), watch("12"));
        assert!(known.deleted("a", "13"));
        assert!(!known.deleted("a", "13"));
        assert_eq!(known.after_watch(&End::Closed), watch("13"));
    }

    #[test]
    fn events_out_of_order_end_in_the_newest_state() {
        let mut known = listed(&[("a", "3")], "7");
        assert!(known.upserted("a", "10"));
        assert!(!known.upserted("a", "9"));
        assert!(!known.deleted("a", "8"), "left the selection and came back");
        assert!(known.upserted("b", "9"), "another object's older event still counts");
        assert!(known.deleted("a", "12"));
        assert!(!known.upserted("a", "11"), "must not come back to life");
        assert!(known.upserted("a", "14"), "but may really come back");
        assert!(!known.deleted("never", "15"));
        assert!(!known.upserted("never", "13"));
        assert_eq!(known.after_watch(&End::Closed), watch("15"));
    }

    #[test]
    fn what_was_asked_for_moves_no_version_and_is_watched_from_there() {
        let mut known = listed(&[("a", "3")], "7");
        assert!(known.introduced("b", "12"));
        assert_eq!(known.after_watch(&End::Closed), watch("7"), "what came between is still to be told");
        assert!(!known.upserted("b", "12"), "no news when the watch comes to it");
        assert!(!known.introduced("b", "11"));
        assert!(known.deleted("b", "13"));
        assert!(!known.introduced("b", "12"), "asked before it went, told after");
        assert!(known.introduced("c", "14"));
        known.begin_list();
        assert!(!known.listed("a", "3"));
        assert_eq!(known.end_list("20".into()), ["c"], "gone while nobody watched");
    }

    #[test]
    fn what_was_asked_for_while_a_list_ran_stays_if_it_is_younger() {
        let mut known = listed(&[("a", "3"), ("b", "4")], "7");
        known.begin_list();
        assert!(!known.listed("a", "3"));
        assert!(known.introduced("a", "21"), "the list has an older one");
        assert!(known.introduced("b", "9"), "known before, and changed");
        assert!(known.introduced("c", "10"));
        assert!(known.introduced("d", "22"));
        let mut gone = known.end_list("20".into());
        gone.sort();
        assert_eq!(gone, ["b", "c"], "they ended before the list was made");
        assert!(known.deleted("a", "23") && known.deleted("d", "24"));
    }

    #[test]
    fn versions_that_are_no_numbers_count_in_order_of_arrival() {
        let mut known = listed(&[("a", "x")], "v1");
        assert!(!known.upserted("a", "x"));
        assert!(known.upserted("a", "b"));
        assert!(known.deleted("a", "b"));
        assert_eq!(known.after_watch(&End::Closed), watch("b"));
    }

    #[test]
    fn ends_of_a_watch() {
        let failed = |code: u16| End::Failed(Failure::status("", code, ""));
        let check = |end: End, expected: Next| {
            assert_eq!(listed(&[], "7").after_watch(&end), expected, "{end:?}");
        };
        check(End::Closed, watch("7"));
        check(End::Failed(Failure::transport("", "reset")), watch("7"));
        for code in [401, 403, 429, 500, 503, 504] {
            check(failed(code), watch("7"));
        }
        check(failed(410), Next::List);
        check(failed(400), Next::List);
        let too_new = r#"{"status":"Failure","code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#;
        check(End::Failed(Failure::status("", 504, too_new)), Next::List);
    }

    #[test]
    fn an_event_that_cannot_be_decoded_twice_lists_again() {
        let end = || End::Undecodable("x".into());
        let mut known = listed(&[], "7");
        assert_eq!(known.after_watch(&end()), watch("7"));
        known.bookmark("8");
        assert_eq!(known.after_watch(&end()), watch("8"), "elsewhere");
        assert_eq!(known.after_watch(&end()), Next::List);
        known.begin_list();
        known.end_list("9".into());
        assert_eq!(known.after_watch(&end()), watch("9"));
    }
}
