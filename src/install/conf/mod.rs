//! CNI configurations as text: read as libcni reads them, edited without touching any byte that is not ours.
//!
//! An edit cuts or inserts text at the positions of array elements; nothing is ever printed anew. So key order,
//! numbers, escapes and white space of everybody else's plugins stay as they are, and taking our entry out of a list
//! gives back the bytes from before we put it in.
//!
//! Source: CNI specification, "Section 1: Network configuration format"; libcni's `ConfListFromBytes` and
//! `ConfFromBytes` for what a runtime accepts.

mod members;

use super::PLUGIN;
use super::entry::Entry;
use crate::error::Result;
use crate::invalid;
use members::{Members, is_field};
use serde_json::value::RawValue;
use std::ops::Range;

pub use members::{decode, encode};

/// Whether a file name is one that a runtime takes for a configuration: a list, or a single plugin.
pub fn is_candidate(name: &str) -> bool {
    is_list(name) || is_single(name)
}

/// Lists are read from `.conflist` only.
pub fn is_list(name: &str) -> bool {
    name.ends_with(".conflist")
}

/// Single plugins are read from `.conf` and `.json` (libcni's `LoadConf`, containerd, CRI-O).
pub fn is_single(name: &str) -> bool {
    name.ends_with(".conf") || name.ends_with(".json")
}

/// The list's file name that a single plugin's file is converted to: `10-x.conf` to `10-x.conflist`.
pub fn list_name(single: &str) -> String {
    let stem = single.strip_suffix(".conf").or_else(|| single.strip_suffix(".json")).unwrap_or(single);
    format!("{stem}.conflist")
}

/// A configuration that a runtime would load.
#[derive(Debug)]
pub enum Conf<'a> {
    /// A chain of plugins.
    List(List<'a>),
    /// One plugin.
    Single(Single<'a>),
}

impl<'a> Conf<'a> {
    /// Reads a file's content, as [`decode`] gives it, by the rules for its name. The error says why no runtime would
    /// load it.
    pub fn parse(name: &str, content: &'a [u8]) -> Result<Self> {
        if content.iter().all(u8::is_ascii_whitespace) {
            return Err(invalid!("is empty"));
        }
        let text = std::str::from_utf8(content).map_err(|e| invalid!("is not UTF-8: {e}"))?;
        if is_list(name) { List::parse(text).map(Conf::List) } else { Single::parse(text).map(Conf::Single) }
    }

    /// The types of its plugins, in order.
    pub fn types(&self) -> Vec<&str> {
        match self {
            Conf::List(list) => list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect(),
            Conf::Single(single) => vec![&single.kind],
        }
    }

    /// Whether our plugin is named.
    pub fn has_ours(&self) -> bool {
        self.types().contains(&PLUGIN)
    }

    /// Whether any other plugin is named.
    pub fn has_others(&self) -> bool {
        self.types().iter().any(|kind| *kind != PLUGIN)
    }

    /// The configuration as a list without our entry.
    pub fn base(&self) -> String {
        match self {
            Conf::List(list) => list.without_entry(),
            Conf::Single(single) => single.to_list(),
        }
    }
}

/// What a network is called, and which version of CNI its plugins are run with. IPAM plugins keep their leases under
/// the name: under a new one they hand out addresses twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// The name with its quotes, as it stands in the text.
    name: &'a str,
    version: Option<&'a str>,
}

impl Head<'_> {
    /// Whether it is the one that Istio gives to a list it makes of a single configuration.
    pub fn is_istios(&self) -> bool {
        self.name == NAMELESS
    }
}

/// A network configuration list.
#[derive(Debug)]
pub struct List<'a> {
    text: &'a str,
    head: Head<'a>,
    /// From `[` to past `]`.
    array: Range<usize>,
    plugins: Vec<Plugin<'a>>,
}

#[derive(Debug)]
struct Plugin<'a> {
    kind: String,
    has_ipam: bool,
    text: &'a str,
    span: Range<usize>,
}

impl<'a> List<'a> {
    /// Reads a list as libcni does: a name, plugins, each an object with a type.
    pub fn parse(text: &'a str) -> Result<Self> {
        let members = Members::parse(text)?;
        let name = members.member("name").ok_or_else(|| invalid!("has no name"))?;
        if members::string("name", name)?.is_empty() {
            return Err(invalid!("has no name"));
        }
        let version = members.member("cniVersion");
        version.map(|version| members::string("cniVersion", version)).transpose()?;
        let head = Head { name: name.get(), version: version.map(RawValue::get) };
        for flag in ["disableCheck", "disableGC", "loadOnlyInlinedPlugins"] {
            let value = members.member(flag).map(|value| value.get().trim_matches('"').to_ascii_lowercase());
            if value.is_some_and(|value| value != "true" && value != "false") {
                return Err(invalid!("has a {flag} that is neither true nor false"));
            }
        }
        let array = members.member("plugins").ok_or_else(|| invalid!("has no plugins"))?;
        let elements: Vec<&RawValue> =
            serde_json::from_str(array.get()).map_err(|_| invalid!("has plugins that are no array"))?;
        if elements.is_empty() {
            return Err(invalid!("has no plugins"));
        }
        let plugins = elements.iter().enumerate().map(|(i, element)| {
            // libcni prints each plugin anew before it reads it.
            let members = Members::parse(element.get()).map(|members| members.marshalled());
            let read = members.and_then(|members| members::plugin(&members));
            let (kind, has_ipam) = read.map_err(|e| e.context(format!("plugin {}", i + 1)))?;
            Ok(Plugin { kind, has_ipam, text: element.get(), span: span(text, element) })
        });
        Ok(List { text, head, array: span(text, array), plugins: plugins.collect::<Result<_>>()? })
    }

    /// Whether our plugin is named.
    pub fn has_ours(&self) -> bool {
        self.plugins.iter().any(|plugin| plugin.kind == PLUGIN)
    }

    /// Whether the plugins beside ours are of these types, in this order.
    pub fn is_chain_of(&self, types: &[&str]) -> bool {
        let others = self.plugins.iter().filter(|plugin| plugin.kind != PLUGIN);
        others.map(|plugin| plugin.kind.as_str()).eq(types.iter().copied())
    }

    /// Its name and version.
    pub fn head(&self) -> Head<'a> {
        self.head
    }

    /// Whether our entry is there exactly once, with the content it should have, after the plugin that gives the pod
    /// its address (the first with an `ipam`, else the first of all).
    pub fn is_installed(&self, entry: &Entry) -> bool {
        let mut ours = self.plugins.iter().enumerate().filter(|(_, plugin)| plugin.kind == PLUGIN);
        let (Some((at, found)), None) = (ours.next(), ours.next()) else { return false };
        let others = || self.plugins.iter().enumerate().filter(|(_, plugin)| plugin.kind != PLUGIN);
        let address_giver = others().find(|(_, plugin)| plugin.has_ipam).or_else(|| others().next());
        let content = serde_json::from_str::<serde_json::Value>(found.text);
        address_giver.is_some_and(|(i, _)| i < at)
            && content.is_ok_and(|content| content.as_object() == Some(&entry.to_json()))
    }

    /// The list without our entry, every other byte as it was. With no other plugin the array is empty afterwards.
    pub fn without_entry(&self) -> String {
        let mut cuts = Vec::new();
        let mut before: Option<&Plugin<'_>> = None;
        for (i, plugin) in self.plugins.iter().enumerate() {
            if plugin.kind != PLUGIN {
                before = Some(plugin);
                continue;
            }
            // With the comma that parts it from its neighbour: the one before, which we appended it to.
            cuts.push(match (before, self.plugins.get(i + 1)) {
                (Some(before), _) => before.span.end..plugin.span.end,
                (None, Some(next)) => plugin.span.start..next.span.start,
                (None, None) => plugin.span.clone(),
            });
            before = before.and(Some(plugin));
        }
        let mut text = self.text.to_owned();
        for cut in cuts.into_iter().rev() {
            text.replace_range(cut, "");
        }
        text
    }

    /// The list with our entry at its end, in the style of the list.
    pub fn with_entry_appended(&self, entry: &Entry) -> String {
        let Some(last) = self.plugins.last() else { return self.text.to_owned() };
        let style = Style::of(last.text);
        let separator = match self.plugins.as_slice() {
            [.., before, last] => self.between(before.span.end, last.span.start).trim_start().get(1..),
            _ => Some(self.between(self.array.start + 1, last.span.start)),
        };
        let separator = match separator.unwrap_or_default() {
            "" if style.is_some() => " ",
            other => other,
        };
        let (head, tail) = self.text.split_at(last.span.end);
        format!("{head},{separator}{}{tail}", style.unwrap_or_default().print(entry))
    }

    fn between(&self, start: usize, end: usize) -> &str {
        self.text.get(start..end).unwrap_or_default()
    }
}

/// A configuration of one plugin.
#[derive(Debug)]
pub struct Single<'a> {
    text: &'a str,
    members: Members<'a>,
    kind: String,
}

/// The name that Istio gives a network converted from a configuration without one; no runtime takes an empty one.
const NAMELESS: &str = "\"k8s-pod-network\"";

impl<'a> Single<'a> {
    /// Reads a single configuration as libcni does: an object with a type.
    pub fn parse(text: &'a str) -> Result<Self> {
        let members = Members::parse(text)?;
        let (kind, _) = members::plugin(&members)?;
        Ok(Single { text, members, kind })
    }

    /// Whether it is our own configuration with exactly the content it should have.
    pub fn is_standalone(&self, entry: &Entry) -> bool {
        serde_json::from_str::<serde_json::Value>(self.text)
            .is_ok_and(|content| content.as_object() == Some(&entry.to_standalone()))
    }

    /// A list with this plugin alone, under its own name and version.
    pub fn to_list(&self) -> String {
        let name = self.members.field("name").map(RawValue::get).filter(|name| *name != "\"\"");
        let version = self.members.field("cniVersion").map(RawValue::get);
        self.to_list_under(Head { name: name.unwrap_or(NAMELESS), version })
    }

    /// A list with this plugin alone, under this name and version.
    pub fn to_list_under(&self, head: Head<'_>) -> String {
        let is_head = |key: &RawValue| is_field(key, "name") || is_field(key, "cniVersion");
        let rest = self.members.0.iter().filter(|(key, _)| !is_head(key));
        let rest =
            rest.filter_map(|(key, value)| self.text.get(span(self.text, key).start..span(self.text, value).end));
        let version = head.version.map(|version| ("\"cniVersion\"", version));
        let head = [("\"name\"", head.name)].into_iter().chain(version);
        let Some(style) = Style::of(self.text.trim()) else {
            let head = head.map(|(key, value)| format!("{key}:{value},")).collect::<String>();
            return format!("{{{head}\"plugins\":[{{{}}}]}}{}", rest.collect::<Vec<_>>().join(","), self.tail());
        };
        let Style { eol, unit, .. } = &style;
        let head = head.map(|(key, value)| format!("{unit}{key}: {value},{eol}")).collect::<String>();
        // A JSON string holds no raw line break, so every one of them is white space that may be indented.
        let rest = rest.map(|member| format!("{unit}{unit}{unit}{}", member.replace('\n', &format!("\n{unit}{unit}"))));
        let rest = rest.collect::<Vec<_>>().join(&format!(",{eol}"));
        format!(
            "{{{eol}{head}{unit}\"plugins\": [{eol}{unit}{unit}{{{eol}{rest}{eol}{unit}{unit}}}{eol}{unit}]{eol}}}{}",
            self.tail()
        )
    }

    /// What follows the object: usually a line break.
    fn tail(&self) -> &str {
        self.text.get(self.text.trim_end().len()..).unwrap_or_default()
    }
}

/// How an object is laid out over several lines.
#[derive(Debug, Default)]
struct Style {
    /// White space before the closing brace on its line.
    outer: String,
    /// One level of indentation.
    unit: String,
    eol: &'static str,
}

impl Style {
    /// `None` when the object is on one line.
    fn of(object: &str) -> Option<Self> {
        let indent = |line: &str| line[..line.len() - line.trim_start().len()].to_owned();
        let (_, last) = object.rsplit_once('\n')?;
        let outer = indent(last);
        let first_key = object.lines().skip(1).find(|line| !line.trim().is_empty()).map(indent).unwrap_or_default();
        let unit = first_key.strip_prefix(outer.as_str()).filter(|unit| !unit.is_empty()).unwrap_or("  ").to_owned();
        Some(Style { outer, unit, eol: if object.contains("\r\n") { "\r\n" } else { "\n" } })
    }

    /// The entry laid out so; on one line by default.
    fn print(&self, entry: &Entry) -> String {
        let entry = serde_json::Value::Object(entry.to_json());
        if self.eol.is_empty() { entry.to_string() } else { pretty(&entry, self) }
    }
}

/// Our own configuration as a file of its own.
pub fn standalone(entry: &Entry) -> String {
    let style = Style { outer: String::new(), unit: "  ".to_owned(), eol: "\n" };
    pretty(&serde_json::Value::Object(entry.to_standalone()), &style) + "\n"
}

fn pretty(value: &serde_json::Value, style: &Style) -> String {
    let mut out = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(style.unit.as_bytes());
    // Writing JSON to memory cannot fail.
    let _ = serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, format));
    String::from_utf8_lossy(&out).replace('\n', &format!("{}{}", style.eol, style.outer))
}

/// Where a value that borrows from `text` lies in it.
fn span(text: &str, value: &RawValue) -> Range<usize> {
    let start = value.get().as_ptr().addr() - text.as_ptr().addr();
    start..start + value.get().len()
}
