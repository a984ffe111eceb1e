//! From what is in the directory to what has to be written and removed, and why. Pure: the same plan is carried out,
//! listed by a dry run, and tested.

mod listing;
mod runtime;

pub use listing::{Access, Found, Listing};
pub use runtime::{About, Doubt};

use super::conf::{self, Conf, List};
use super::{Mode, OWNED_FILE, Options, PLUGIN};
use std::collections::BTreeMap;

/// File name of our own configuration in standalone mode.
const STANDALONE_FILE: &str = "YYY-istio-cni.conf";

/// One of the two directories of a [`Listing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The conf dir.
    Net,
    /// Our copies.
    Saved,
}

/// One change, with the reason for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where.
    pub place: Place,
    /// File name.
    pub name: String,
    /// What is to be there.
    pub change: Change,
    /// Why.
    pub why: String,
}

/// What happens to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It gets this content.
    Write(String, Access),
    /// It goes.
    Remove,
}

/// Where the configuration stands once the steps are done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Our plugin is in the chain of the primary of this name, whose plugin types these are.
    Installed {
        /// File name of the primary; of our own file in standalone mode.
        primary: String,
        /// Types of its plugins.
        types: Vec<String>,
    },
    /// Not installed: what is waited for, or why we may not write.
    Waiting(String),
    /// Not installed: the bin dir is not the one that the runtime runs plugins from.
    OtherBinDir(Doubt),
    /// A file may be in the middle of being written: look again.
    Unsettled,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// In this order; a stop between any two leaves a configuration that works.
    pub steps: Vec<Step>,
    /// What a person should know: the file and the remark.
    pub warnings: BTreeMap<String, String>,
    /// While there is one the agent is not ready.
    pub doubts: Vec<Doubt>,
    /// Afterwards.
    pub state: State,
}

/// Plans how to get our plugin into the configuration.
pub fn install(listing: &Listing, options: &Options) -> Plan {
    let mut planner = Planner::new(listing, options);
    let state = planner.install().unwrap_or_else(|stop| stop);
    if !matches!(state, State::Installed { .. }) {
        planner.steps.clear();
    }
    Plan { steps: planner.steps, warnings: planner.warnings, doubts: planner.doubts, state }
}

/// Plans how to get everything of ours out again.
pub fn remove(listing: &Listing, options: &Options) -> Vec<Step> {
    let mut planner = Planner::new(listing, options);
    for name in listing.net.keys() {
        planner.take_out(name, "the plugin is being removed");
    }
    for name in listing.saved.keys() {
        if planner.is_in_use(name) {
            planner.push(Place::Saved, name, Change::Remove, "no longer needed");
        }
    }
    planner.steps
}

/// Files that may still name our plugin after [`remove`]: a runtime that loads one of them runs our executable, so it
/// must stay. Each comes with the remedy.
pub fn unclear(listing: &Listing) -> Vec<String> {
    let mut unclear = Vec::new();
    for (name, found) in &listing.net {
        match &found.content {
            Err(e) => unclear.push(format!(
                "{name} cannot be read ({e}), and may name {PLUGIN}: make it readable or remove it, and try again"
            )),
            Ok(content) if Conf::parse(name, content).is_err() && names_us(content) => unclear.push(format!(
                "{name} names {PLUGIN} and is no configuration that can be edited: take it out by hand, and try again"
            )),
            Ok(_) => {}
        }
    }
    unclear
}

fn names_us(content: &[u8]) -> bool {
    content.windows(PLUGIN.len()).any(|window| window == PLUGIN.as_bytes())
}

struct Planner<'a> {
    options: &'a Options,
    listing: &'a Listing,
    /// What the runtime would load of each file, or why it would not.
    confs: BTreeMap<&'a str, Result<Conf<'a>, String>>,
    steps: Vec<Step>,
    warnings: BTreeMap<String, String>,
    doubts: Vec<Doubt>,
}

impl<'a> Planner<'a> {
    fn new(listing: &'a Listing, options: &'a Options) -> Self {
        let parse = |name| Conf::parse(name, listing.content(name)?).map_err(|e| e.to_string());
        let confs = listing.net.keys().map(|name| (name.as_str(), parse(name))).collect();
        Planner { options, listing, confs, steps: Vec::new(), warnings: BTreeMap::new(), doubts: Vec::new() }
    }

    fn install(&mut self) -> Result<State, State> {
        let (target, state) = match &self.options.mode {
            Mode::Standalone => self.standalone()?,
            Mode::Chained => self.chained()?,
            Mode::Owned { file } => self.owned(file)?,
        };
        let others: Vec<&str> = self.confs.keys().copied().filter(|name| *name != target).collect();
        for name in others {
            // Half of a conversion: the steps of the conversion deal with it.
            let planned = |step: &Step| step.place == Place::Net && step.name == name;
            if !self.steps.iter().any(planned) {
                self.take_out(name, &format!("our plugin belongs into {target}"));
            }
        }
        Ok(state)
    }

    fn chained(&mut self) -> Result<(String, State), State> {
        let primary = self.primary()?;
        let access = self.access(primary);
        let Some(Ok(conf)) = self.confs.get(primary) else { return Err(State::Unsettled) };
        let (base, types) = (self.base(conf), other_types(conf));
        let (target, installed) = match conf {
            Conf::List(list) => (primary.to_owned(), list.is_installed(&self.options.entry)),
            Conf::Single(_) => (conf::list_name(primary), false),
        };
        let converted = target != primary;
        let text = with_entry(&base, self.options)?;
        self.save(primary, &target, &base, access);
        if converted {
            self.check_sibling(primary, &target)?;
        }
        let lost = self.listing.is_empty(primary);
        if !installed || lost {
            let why = match (converted, lost) {
                (true, _) => format!("{primary} becomes a list with our plugin at its end"),
                (_, true) => "it is empty; the last good content is restored, with our plugin at its end".to_owned(),
                _ => "our plugin is missing, or not as it should be".to_owned(),
            };
            self.write(Place::Net, &target, text, access, &why);
        }
        if converted {
            self.push(Place::Net, primary, Change::Remove, &format!("{target} takes its place"));
        }
        self.check_plugins(&types, installed)?;
        self.check_order(&target, primary);
        let state = State::Installed { primary: target.clone(), types };
        Ok((target, state))
    }

    /// Nothing is written where a runtime would not find our plugin: it starts and stops no pod any more.
    fn check_plugins(&mut self, types: &[String], installed: bool) -> Result<(), State> {
        match runtime::bin_dir(&self.options.bin_dir, self.listing.plugins.as_ref(), types) {
            Some(doubt) if !installed => return Err(State::OtherBinDir(doubt)),
            doubt => self.doubts.extend(doubt),
        }
        Ok(())
    }

    fn check_order(&mut self, target: &str, primary: &str) {
        let doubts = runtime::order(&self.confs, target, primary, &self.options.mode);
        // What is doubted is not warned about besides.
        self.warnings.retain(|name, _| name.as_str() >= target);
        self.doubts.extend(doubts);
    }

    /// The primary as a list without our entry, under the name and version that pods were added with: those of Istio's
    /// copy of a single configuration, where there is one.
    fn base(&self, primary: &Conf<'_>) -> String {
        let Conf::Single(single) = primary else { return primary.base() };
        let types = primary.types();
        let copies = self.confs.iter().filter_map(|(name, conf)| match (&self.options.mode, conf) {
            (Mode::Owned { file }, Ok(Conf::List(list))) if file == name => Some(list),
            (_, Ok(Conf::List(list))) if *name == OWNED_FILE => Some(list),
            _ => None,
        });
        let istios = copies.filter(|list| list.head().is_istios() && list.has_ours() && list.is_chain_of(&types));
        istios.map(|list| single.to_list_under(list.head())).next().unwrap_or_else(|| single.to_list())
    }

    /// A file beside the one that is converted, under the name the list will get, must not be lost.
    fn check_sibling(&self, primary: &str, target: &str) -> Result<(), State> {
        let ours = match self.confs.get(target) {
            None => true,
            Some(Ok(conf)) => conf.has_ours(),
            Some(Err(_)) => self.listing.is_empty(target),
        };
        let refused = || {
            format!(
                "{primary} and {target} both exist and neither is ours: remove the one that is not in use, or name it with --cni-conf-name"
            )
        };
        if ours { Ok(()) } else { Err(State::Waiting(refused())) }
    }

    fn owned(&mut self, file: &str) -> Result<(String, State), State> {
        if !conf::is_list(file) {
            return Err(State::Waiting(format!("{file} is no name for a list: it must end in .conflist")));
        }
        let primary = self.primary()?;
        let Some(Ok(conf)) = self.confs.get(primary) else { return Err(State::Unsettled) };
        let (base, types) = (self.base(conf), other_types(conf));
        let may_write = match self.confs.get(file) {
            None => true,
            Some(Ok(found)) => file == OWNED_FILE || found.has_ours() || found.base() == base,
            Some(Err(_)) => self.listing.is_empty(file),
        };
        if !may_write {
            let refused = format!(
                "{file} exists and is not our copy of {primary}: choose another --istio-owned-cni-config-filename"
            );
            return Err(State::Waiting(refused));
        }
        let text = with_entry(&base, self.options)?;
        self.write(
            Place::Net,
            file,
            text,
            self.access(file),
            &format!("our copy of {primary}, with our plugin at its end"),
        );
        let installed = self.confs.get(file).is_some_and(|conf| conf.as_ref().is_ok_and(Conf::has_ours));
        self.check_plugins(&types, installed)?;
        self.check_order(file, file);
        Ok((file.to_owned(), State::Installed { primary: primary.to_owned(), types }))
    }

    fn standalone(&mut self) -> Result<(String, State), State> {
        let name = self.options.conf_name.clone().unwrap_or_else(|| STANDALONE_FILE.to_owned());
        if !conf::is_single(&name) {
            let refused =
                format!("{name} would be a list with no plugin but ours: name a .conf file with --cni-conf-name");
            return Err(State::Waiting(refused));
        }
        let right = match self.confs.get(name.as_str()) {
            None => false,
            Some(Ok(Conf::Single(single))) if !is_other(&self.confs, &name) => {
                single.is_standalone(&self.options.entry)
            }
            Some(Err(_)) if self.listing.is_empty(&name) => false,
            Some(Err(e)) => return Err(State::Waiting(format!("{name} {e}; it is not ours to overwrite"))),
            Some(Ok(_)) => {
                let refused = format!("{name} belongs to another plugin: choose another --cni-conf-name");
                return Err(State::Waiting(refused));
            }
        };
        if !right {
            let text = conf::standalone(&self.options.entry);
            self.write(Place::Net, &name, text, self.access(&name), "our own configuration");
        }
        Ok((name.clone(), State::Installed { primary: name, types: Vec::new() }))
    }

    /// The file a runtime would use if we were not there.
    fn primary(&mut self) -> Result<&'a str, State> {
        if let Some(name) = &self.options.conf_name {
            let sibling = conf::list_name(name);
            let single = name.strip_suffix("list").filter(|single| conf::is_single(single));
            let tried = [Some(name.as_str()), Some(sibling.as_str()), single];
            let found = tried.into_iter().flatten().find_map(|name| self.confs.get_key_value(name));
            let Some((&found, conf)) = found else {
                return Err(State::Waiting(format!("waiting for {name}")));
            };
            return match conf {
                Ok(conf) if conf.has_others() => Ok(found),
                Ok(_) => Err(State::Waiting(format!("waiting for {found}: it names no plugin but ours"))),
                Err(_) if self.listing.is_unsettled(found) => Err(State::Unsettled),
                Err(e) => Err(State::Waiting(format!("waiting for {found}: it {e}"))),
            };
        }
        for (&name, conf) in &self.confs {
            match conf {
                Ok(_) if self.is_copy(name) => {}
                Ok(conf) if conf.has_others() => return Ok(name),
                // Our own file of standalone mode.
                Ok(Conf::Single(_)) => {}
                Ok(Conf::List(_)) => {
                    self.warnings.insert(name.to_owned(), "names no plugin but ours".to_owned());
                }
                Err(_) if self.listing.is_unsettled(name) => return Err(State::Unsettled),
                Err(e) => {
                    self.warnings.insert(name.to_owned(), e.clone());
                }
            }
        }
        Err(State::Waiting("waiting for a CNI configuration: there is no valid one".to_owned()))
    }

    /// Whether a file is a copy of the chain that we (or Istio) own, rather than a primary: by its name, or because it
    /// is another file and our entry.
    fn is_copy(&self, name: &str) -> bool {
        let Some(Ok(conf)) = self.confs.get(name) else { return false };
        match &self.options.mode {
            // A file we once edited in place is somebody's, whatever it is called.
            Mode::Owned { file } if file == name => !self.listing.saved.contains_key(name),
            _ if !conf.has_ours() || !conf.has_others() => false,
            _ if name == OWNED_FILE => true,
            _ => {
                let base = conf.base();
                self.confs.values().flatten().any(|other| !other.has_ours() && makes(other, &base))
            }
        }
    }

    /// Keeps the primary as it was before us, and the original of a conversion as long as the list is still what we
    /// made of it.
    fn save(&mut self, primary: &str, target: &str, base: &str, access: Access) {
        if let (true, Ok(original)) = (target != primary, self.listing.content(primary)) {
            let original = String::from_utf8_lossy(original).into_owned();
            self.write(Place::Saved, primary, original, access, "the original, for the way back");
        }
        self.write(Place::Saved, target, base.to_owned(), access, "the last good content without our plugin");
        let origin = self.origin(target, base);
        for name in self.listing.saved.keys().filter(|name| conf::is_single(name)) {
            if conf::list_name(name) == target && name != primary && origin != Some(name) {
                self.push(Place::Saved, name, Change::Remove, &format!("{target} is no longer what was made of it"));
            }
        }
    }

    /// The single configuration from which a list was converted, if the list is still what we made of it.
    fn origin(&self, list: &str, base: &str) -> Option<&'a str> {
        let converted = |name: &str, found: &Found| {
            let Ok(content) = &found.content else { return false };
            Conf::parse(name, content).is_ok_and(|single| makes(&single, base))
        };
        let saved = self.listing.saved.iter();
        let mut singles = saved.filter(|(name, _)| conf::is_single(name) && conf::list_name(name) == list);
        singles.find(|(name, found)| converted(name, found)).map(|(name, _)| name.as_str())
    }

    /// Takes our plugin out of a file it does not belong in.
    fn take_out(&mut self, name: &'a str, why: &str) {
        let Some(Ok(conf)) = self.confs.get(name) else { return };
        if !conf.has_ours() {
            return;
        }
        if self.is_copy(name) || !conf.has_others() {
            self.push(Place::Net, name, Change::Remove, &format!("it is ours alone; {why}"));
            return;
        }
        let base = conf.base();
        let Some(origin) = self.origin(name, &base) else {
            self.write(Place::Net, name, base, self.access(name), why);
            return;
        };
        if let (false, Some(saved)) = (self.listing.net.contains_key(origin), self.listing.saved.get(origin)) {
            let content = saved.content.as_deref().unwrap_or_default();
            let original = String::from_utf8_lossy(content).into_owned();
            self.write(Place::Net, origin, original, saved.access, &format!("the original comes back; {why}"));
        }
        self.push(Place::Net, name, Change::Remove, &format!("{origin} takes its place; {why}"));
    }

    /// Whether the file that a copy is of, or what was made of it, is there and can be loaded, so that nobody needs the
    /// copy once our entry is out.
    fn is_in_use(&self, saved: &str) -> bool {
        let same = |name: &str| name == saved || conf::list_name(name) == saved || conf::list_name(saved) == name;
        self.confs.iter().any(|(name, conf)| same(name) && conf.is_ok() && !self.listing.is_empty(name))
    }

    fn access(&self, name: &str) -> Access {
        self.listing.net.get(name).map_or(self.new_access(), |found| found.access)
    }

    fn new_access(&self) -> Access {
        Access { mode: if self.options.conf_group_read { 0o640 } else { 0o600 }, owner: None }
    }

    /// Plans a write unless the file is already so.
    fn write(&mut self, place: Place, name: &str, text: String, access: Access, why: &str) {
        let files = match place {
            Place::Net => &self.listing.net,
            Place::Saved => &self.listing.saved,
        };
        if files.get(name).is_none_or(|found| found.content.as_deref() != Ok(text.as_bytes())) {
            self.push(place, name, Change::Write(text, access), why);
        }
    }

    fn push(&mut self, place: Place, name: &str, change: Change, why: &str) {
        self.steps.push(Step { place, name: name.to_owned(), change, why: why.to_owned() });
    }
}

/// Whether a list without our entry is what is made of this configuration, be it under the name that Istio gives it.
fn makes(conf: &Conf<'_>, base: &str) -> bool {
    let under_istios_name = |single: &conf::Single<'_>| {
        let head = List::parse(base).map(|list| list.head()).ok().filter(conf::Head::is_istios);
        head.is_some_and(|head| single.to_list_under(head) == base)
    };
    conf.base() == base || matches!(conf, Conf::Single(single) if under_istios_name(single))
}

fn is_other(confs: &BTreeMap<&str, Result<Conf<'_>, String>>, name: &str) -> bool {
    matches!(confs.get(name), Some(Ok(conf)) if conf.has_others())
}

fn other_types(conf: &Conf<'_>) -> Vec<String> {
    conf.types().into_iter().filter(|kind| *kind != PLUGIN).map(str::to_owned).collect()
}

/// The list with our entry at its end. A list that could not be read back, or that would hold nothing but us, is
/// refused: whatever went wrong, the file on disk is better.
fn with_entry(base: &str, options: &Options) -> Result<String, State> {
    let refuse = |e: &str| State::Waiting(format!("refusing to write a configuration that {e}"));
    let text = List::parse(base).map_err(|e| refuse(&e.to_string()))?.with_entry_appended(&options.entry);
    match List::parse(&text) {
        Ok(list) if list.is_installed(&options.entry) => Ok(text),
        Ok(_) => Err(refuse("would not have our plugin after another")),
        Err(e) => Err(refuse(&e.to_string())),
    }
}

#[cfg(test)]
mod tests;
