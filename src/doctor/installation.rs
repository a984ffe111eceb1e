//! What is installed: the CNI configuration and our entry in its chain, the plugin, its kubeconfig.

use super::finding::Finding;
use super::options::Options;
use super::platform::{self, PLATFORMS};
use crate::install::conf::{Conf, is_candidate};
use crate::install::plan::{self, About, Doubt, Listing, State};
use crate::install::{Mode, PLUGIN, binary, conflict, directory, kubeconfig};
use crate::sys::exec;
use crate::sys::file;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

const PUTS_IT_THERE: &str = "the running agent puts it there: start it, or see why it is not ready";
const PUTS_IT_RIGHT: &str = "the running agent puts it right: start it, or see why it is not ready";

/// For a plugin of another make to say what it is.
const ABOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Facts {
    listing: Result<Listing, String>,
    /// That the conf dir is not there, and what to do about it.
    no_conf_dir: Option<(String, String)>,
    /// The same for the bin dir.
    no_bin_dir: Option<(String, String)>,
    /// Every name in the conf dir.
    conf_names: Vec<String>,
    /// Every name in the bin dir.
    bin_names: Vec<String>,
    plugin: Plugin,
    /// Platforms that have plugins or configurations at their own places: name, place, and what is there.
    elsewhere: Vec<Elsewhere>,
    /// Mode and owner of the kubeconfig, if it is there.
    kubeconfig: Option<(u32, u32)>,
}

#[derive(Debug, Clone)]
struct Elsewhere {
    platform: &'static str,
    conf_dir: bool,
    place: String,
    names: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Plugin {
    Ours,
    Missing,
    /// Another, and what it says of itself.
    Other(String),
    NotExecutable,
    Unreadable(String),
}

impl Facts {
    pub(super) fn gather(options: &Options) -> Self {
        let install = &options.install;
        let names = |dir: &Path| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
        };
        let stat = std::fs::metadata(install.run_dir.join(kubeconfig::FILE)).ok();
        Facts {
            listing: directory::read(install).map_err(|e| e.to_string()),
            no_conf_dir: directory::missing(&install.net_dir, install),
            no_bin_dir: directory::missing(&install.bin_dir, install),
            conf_names: names(&install.net_dir),
            bin_names: names(&install.bin_dir),
            plugin: plugin(&binary::path(install), &install.executable),
            elsewhere: elsewhere(options),
            kubeconfig: stat.map(|stat| (stat.mode() & 0o7777, stat.uid())),
        }
    }

    /// Whether the entry on the node has the status gate.
    pub(super) fn has_gate(&self) -> bool {
        let Ok(listing) = &self.listing else { return false };
        let contents = listing.net.values().filter_map(|found| found.content.as_deref().ok());
        contents.filter_map(|content| serde_json::from_slice::<serde_json::Value>(content).ok()).any(|conf| {
            let entries = conf["plugins"].as_array().into_iter().flatten().chain([&conf]);
            entries.into_iter().any(|entry| entry["type"] == PLUGIN && entry["status_gate"] == true)
        })
    }

    pub(super) fn judge(&self, options: &Options) -> Vec<Finding> {
        let mut findings = self.configuration(options);
        findings.extend(self.plugin(options));
        findings.push(self.kubeconfig(options));
        findings
    }

    fn configuration(&self, options: &Options) -> Vec<Finding> {
        const CHECK: &str = "CNI configuration";
        let install = &options.install;
        let dir = install.net_dir.display();
        let listing = match &self.listing {
            Ok(listing) => listing,
            Err(e) => return vec![Finding::fail(CHECK, &e, &"is the conf dir mounted, and may we read it?")],
        };
        if let Some((finding, remedy)) = &self.no_conf_dir {
            let other =
                self.other_place(true, options).map(|place| format!("{place}: name it with --mounted-cni-net-dir"));
            return vec![Finding::fail(CHECK, finding, other.as_ref().unwrap_or(remedy))];
        }
        let hidden = self.conf_names.iter().find(|name| name.ends_with(".cilium_bak"));
        let plan = plan::install(listing, install);
        let mut findings = Vec::new();
        match &plan.state {
            State::Waiting(reason) => {
                let remedy = match (self.other_place(true, options), hidden) {
                    (_, Some(hidden)) => format!("Cilium has renamed {hidden}: set cni.exclusive=false for Cilium"),
                    (Some(place), _) => format!("{place}: name it with --mounted-cni-net-dir"),
                    _ => "install the cluster's network plugin; is this the directory that the runtime reads \
                          (--mounted-cni-net-dir)?"
                        .to_owned(),
                };
                findings.push(Finding::fail(CHECK, &format_args!("{dir}: {reason}"), &remedy));
            }
            State::OtherBinDir(doubt) => findings.push(self.doubt(doubt, options)),
            State::Unsettled => {
                findings.push(Finding::warn(
                    CHECK,
                    &format_args!("{dir}: a file is just being written"),
                    &"look again",
                ));
            }
            State::Installed { primary, types } => {
                let file = match &install.mode {
                    Mode::Owned { file } => file,
                    _ => primary,
                };
                findings.push(self.entry(listing, file, types, options));
                findings.extend(plan.doubts.iter().map(|doubt| self.doubt(doubt, options)));
                findings.extend(self.order(listing, file));
                findings.extend(self.chain(types, options));
                if let Some(hidden) = hidden {
                    let finding = format!("{hidden}: Cilium renames the configurations of others");
                    findings.push(Finding::warn(CHECK, &finding, &"set cni.exclusive=false for Cilium"));
                }
            }
        }
        for (name, remark) in &plan.warnings {
            findings.push(Finding::warn(CHECK, &format_args!("{name}: {remark}"), &"repair or remove it"));
        }
        findings
    }

    /// Why a runtime may not run our plugin.
    fn doubt(&self, doubt: &Doubt, options: &Options) -> Finding {
        match doubt.about {
            About::Order => Finding::fail("CNI configuration", &doubt.finding, &doubt.remedy),
            About::BinDir => {
                let other =
                    self.other_place(false, options).map(|place| format!("{place}: name it with --cni-bin-dir"));
                Finding::fail("bin dir", &doubt.finding, &other.as_deref().unwrap_or(doubt.remedy))
            }
        }
    }

    /// Our entry in the file that should have it.
    fn entry(&self, listing: &Listing, file: &str, types: &[String], options: &Options) -> Finding {
        const CHECK: &str = "our entry";
        let install = &options.install;
        let path = install.net_dir.join(file);
        let path = path.display();
        let conf = listing.net.get(file).and_then(|found| Conf::parse(file, found.content.as_ref().ok()?).ok());
        let count = conf.as_ref().map_or(0, |conf| conf.types().iter().filter(|kind| **kind == PLUGIN).count());
        let chain = || conf.as_ref().map(|conf| conf.types().join(", ")).unwrap_or_default();
        let right = match &conf {
            Some(Conf::List(list)) => list.is_installed(&install.entry),
            Some(Conf::Single(single)) => single.is_standalone(&install.entry),
            None => false,
        };
        match count {
            0 => {
                let remedy = match conflict::known_writer(types) {
                    Some((writer, end)) => format!("{PUTS_IT_THERE}; if it does not stay, {writer} is why: {end}"),
                    None => PUTS_IT_THERE.to_owned(),
                };
                Finding::fail(CHECK, &format_args!("{path} does not name {PLUGIN}"), &remedy)
            }
            1 if right => Finding::ok(CHECK, &format_args!("once, in {path} ({})", chain())),
            1 if conf.as_ref().is_some_and(|conf| conf.types().first() == Some(&PLUGIN) && conf.has_others()) => {
                let finding = format!("{path} names {PLUGIN} before the plugin that gives the pod its address");
                Finding::fail(CHECK, &finding, &PUTS_IT_RIGHT)
            }
            1 => {
                let remedy = "give doctor the options of the agent; if they are the same, restart the agent";
                let finding = format!("once, in {path}, with other content than these options ask for");
                Finding::warn(CHECK, &finding, &remedy)
            }
            n => Finding::fail(CHECK, &format_args!("{path} names {PLUGIN} {n} times"), &PUTS_IT_RIGHT),
        }
    }

    /// Other files than the one that should have our entry.
    fn order(&self, listing: &Listing, file: &str) -> Vec<Finding> {
        const CHECK: &str = "CNI configuration";
        let confs = listing
            .net
            .iter()
            .filter(|(name, _)| *name != file)
            .filter_map(|(name, found)| Some((name, Conf::parse(name, found.content.as_ref().ok()?).ok()?)));
        let mut findings = Vec::new();
        for (name, conf) in confs {
            if conf.has_ours() {
                let finding = format!("{name} names {PLUGIN}, too: pods of that network are handled twice");
                findings.push(Finding::fail(CHECK, &finding, &PUTS_IT_RIGHT));
            }
        }
        findings
    }

    /// The plugins of the chain, which must be where ours is.
    fn chain(&self, types: &[String], options: &Options) -> Option<Finding> {
        const CHECK: &str = "bin dir";
        let dir = options.install.bin_dir.display();
        let there = |kind: &&str| self.bin_names.iter().any(|name| name == kind);
        let missing: Vec<&str> = types.iter().map(String::as_str).filter(|kind| !there(kind)).collect();
        // That none is there is said already.
        if missing.is_empty() || missing.len() == types.len() {
            return None;
        }
        let finding = format!("{dir} does not have {}, which the chain names", missing.join(", "));
        Some(match self.other_place(false, options) {
            Some(place) => Finding::fail(CHECK, &finding, &format_args!("{place}: name it with --cni-bin-dir")),
            None => Finding::warn(
                CHECK,
                &finding,
                &"is this the directory that the runtime runs plugins from (--cni-bin-dir)?",
            ),
        })
    }

    /// A platform's place that has what ours should have.
    fn other_place(&self, conf_dir: bool, options: &Options) -> Option<String> {
        let install = &options.install;
        let ours = if conf_dir { &install.net_dir } else { &install.bin_dir };
        let elsewhere = self.elsewhere.iter().filter(|found| found.conf_dir == conf_dir);
        let other = elsewhere.filter(|found| install.host_root.join(&found.place) != *ours).find(|found| {
            let usable = |name: &String| {
                if conf_dir { is_candidate(name) } else { name != PLUGIN }
            };
            found.names.iter().any(usable)
        })?;
        let what = if conf_dir { "configurations" } else { "plugins" };
        Some(format!("{} has {what} in {}", other.platform, other.place))
    }

    fn plugin(&self, options: &Options) -> Option<Finding> {
        const CHECK: &str = "plugin";
        let path = binary::path(&options.install);
        let path = path.display();
        let place = || self.other_place(false, options).filter(|_| self.has_no_plugins());
        Some(match &self.plugin {
            Plugin::Ours => {
                Finding::ok(CHECK, &format_args!("{path} is this executable, {}", env!("CARGO_PKG_VERSION")))
            }
            Plugin::Missing => {
                let (finding, remedy) =
                    self.no_bin_dir.clone().unwrap_or_else(|| (format!("{path} is missing"), PUTS_IT_THERE.to_owned()));
                let other = place().map(|place| format!("{place}: name it with --cni-bin-dir"));
                Finding::fail(CHECK, &finding, &other.unwrap_or(remedy))
            }
            Plugin::Other(about) => {
                Finding::fail(CHECK, &format_args!("{path} is another one ({about})"), &PUTS_IT_RIGHT)
            }
            Plugin::NotExecutable => Finding::fail(CHECK, &format_args!("{path} is not executable"), &PUTS_IT_RIGHT),
            Plugin::Unreadable(e) => Finding::fail(CHECK, &e, &"run doctor as root"),
        })
    }

    fn has_no_plugins(&self) -> bool {
        self.bin_names.iter().all(|name| name.starts_with(PLUGIN))
    }

    fn kubeconfig(&self, options: &Options) -> Finding {
        const CHECK: &str = "kubeconfig";
        let path = options.install.run_dir.join(kubeconfig::FILE);
        let path = path.display();
        match (&options.install.kubeconfig, self.kubeconfig) {
            (None, None) => Finding::ok(CHECK, &"none is needed"),
            (Some(_), None) => Finding::fail(
                CHECK,
                &format_args!("{path} is missing: without the agent, no pod can be decided about"),
                &PUTS_IT_THERE,
            ),
            (wanted, Some((mode, owner))) => {
                let allowed = wanted.as_ref().map_or(0o600, |wanted| wanted.mode);
                if owner == 0 && mode & !allowed == 0 {
                    return Finding::ok(CHECK, &format_args!("{path}, mode {mode:04o}"));
                }
                let finding = format!("{path} belongs to uid {owner} with mode {mode:04o}: it is a credential");
                Finding::warn(CHECK, &finding, &format_args!("chown root and chmod {allowed:04o} it"))
            }
        }
    }
}

fn plugin(path: &Path, ours: &Path) -> Plugin {
    let open = |path: &Path| file::open_regular(path).map_err(|e| e.to_string());
    let mode = match std::fs::metadata(path) {
        Ok(found) => found.mode(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Plugin::Missing,
        Err(e) => return Plugin::Unreadable(format!("stat {}: {e}", path.display())),
    };
    let same = || file::same_content(&open(ours)?, &open(path)?).map_err(|e| e.to_string());
    match same() {
        Ok(_) if mode & 0o111 == 0 => Plugin::NotExecutable,
        Ok(true) => Plugin::Ours,
        Ok(false) => Plugin::Other(about(path)),
        Err(e) => Plugin::Unreadable(e),
    }
}

/// The first line that a plugin prints without a command of a runtime.
fn about(path: &Path) -> String {
    let said = exec::run(&exec::Command { program: path.to_owned(), deadline: ABOUT, ..exec::Command::default() });
    let text = said.map(|said| [said.stderr, said.stdout].concat()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.map_or_else(|| "it does not say which".to_owned(), |line| line.chars().take(80).collect())
}

fn elsewhere(options: &Options) -> Vec<Elsewhere> {
    let root = &options.install.host_root;
    let mut found = Vec::new();
    for platform in PLATFORMS {
        let places = std::iter::once((true, platform.conf)).chain(platform.bin.iter().map(|place| (false, *place)));
        for (conf_dir, place) in places {
            let names = platform::list(root, place);
            if !names.is_empty() {
                found.push(Elsewhere { platform: platform.name, conf_dir, place: place.to_owned(), names });
            }
        }
    }
    found
}
