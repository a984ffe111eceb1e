//! What a container runtime does with CNI, for the demonstration: the first configuration list by file name, its
//! plugins in order for ADD and in reverse for DEL, each with the result of the one before.

use serde_json::{Map, Value, json};
use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// One call of the runtime.
#[derive(Default)]
pub struct Call {
    /// `ADD` or `DEL`.
    pub verb: String,
    pub conf_dir: PathBuf,
    pub bin_dir: PathBuf,
    /// Where the result of ADD is kept for DEL.
    pub cache: PathBuf,
    pub netns: PathBuf,
    /// `NAMESPACE/NAME`.
    pub pod: String,
    pub uid: String,
}

impl Call {
    /// Runs the chain; for ADD the result is the last plugin's.
    pub fn run(&self) -> Result<Value, Box<dyn Error>> {
        let mut lists: Vec<PathBuf> =
            std::fs::read_dir(&self.conf_dir)?.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
        lists.retain(|path| path.extension().is_some_and(|e| e == "conflist"));
        lists.sort();
        let list: Value = serde_json::from_slice(&std::fs::read(lists.first().ok_or("no configuration list")?)?)?;
        let mut plugins = list["plugins"].as_array().ok_or("no plugins")?.clone();
        let mut previous: Option<Value> = None;
        if self.verb == "DEL" {
            plugins.reverse();
            previous = Some(serde_json::from_slice(&std::fs::read(&self.cache)?)?);
        }
        for plugin in &plugins {
            let mut conf = plugin.as_object().ok_or("a plugin that is no object")?.clone();
            for key in ["cniVersion", "name"] {
                conf.insert(key.into(), list[key].clone());
            }
            if let Some(previous) = &previous {
                conf.insert("prevResult".into(), previous.clone());
            }
            let result = self.plugin(conf)?;
            if self.verb == "ADD" {
                previous = Some(result);
            }
        }
        let result = previous.ok_or("an empty chain")?;
        if self.verb == "ADD" {
            std::fs::write(&self.cache, result.to_string())?;
            Ok(result)
        } else {
            std::fs::remove_file(&self.cache)?;
            Ok(json!({}))
        }
    }

    fn plugin(&self, conf: Map<String, Value>) -> Result<Value, Box<dyn Error>> {
        let kind = conf["type"].as_str().ok_or("a plugin without type")?.to_owned();
        let (namespace, name) = self.pod.split_once('/').ok_or("a pod is NAMESPACE/NAME")?;
        let id = format!("sandbox-{}", self.uid);
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={id};\
             K8S_POD_UID={}",
            self.uid
        );
        let mut child = Command::new(self.bin_dir.join(&kind))
            .env("CNI_COMMAND", &self.verb)
            .env("CNI_CONTAINERID", &id)
            .env("CNI_NETNS", &self.netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", args)
            .env("CNI_PATH", &self.bin_dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{kind}: {e}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(Value::Object(conf).to_string().as_bytes())?;
        }
        let output = child.wait_with_output()?;
        let text = String::from_utf8(output.stdout)?;
        if !output.status.success() {
            return Err(format!("{kind} failed: {}", text.trim()).into());
        }
        Ok(if text.trim().is_empty() { Value::Null } else { serde_json::from_str(&text)? })
    }
}
