//! The kubeconfig with which the plugin asks the API server when the agent does not answer.

use super::directory::names;
use crate::error::Result;
use crate::invalid;
use crate::sys::file;
use base64::prelude::{BASE64_STANDARD, Engine};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// Name of the file in the run dir.
pub const FILE: &str = "istio-cni-kubeconfig";

/// Where the API server is and what proves who we are.
#[derive(Debug, Clone)]
pub struct Options {
    /// `https` unless `KUBERNETES_SERVICE_PROTOCOL` says otherwise.
    pub protocol: String,
    /// `KUBERNETES_SERVICE_HOST`.
    pub host: String,
    /// `KUBERNETES_SERVICE_PORT`.
    pub port: String,
    /// Directory of `token` and `ca.crt`.
    pub service_account_dir: PathBuf,
    /// CA file when it is not the service account's.
    pub ca_file: Option<PathBuf>,
    /// The server's certificate is not checked.
    pub skip_tls_verify: bool,
    /// Mode of the file.
    pub mode: u32,
}

/// Writes the file unless it is as it should be; returns whether it wrote.
pub fn ensure(options: &Options, run_dir: &Path) -> Result<bool> {
    let ca = match (options.skip_tls_verify, &options.ca_file) {
        (true, _) => None,
        (false, Some(file)) => Some(read(file)?),
        (false, None) => Some(read(&options.service_account_dir.join("ca.crt"))?),
    };
    let token = String::from_utf8(read(&options.service_account_dir.join("token"))?)
        .map_err(|_| invalid!("{}: the token is not UTF-8", options.service_account_dir.display()))?;
    file::create_dir_all(run_dir, file::Mode(0o755))?;
    let text = render(options, ca.as_deref(), token.trim());
    let path = run_dir.join(FILE);
    let written = file::write_if_changed(&path, text.as_bytes(), file::Mode(options.mode), false)?;
    if written {
        log::info!(file:% = path.display(); "wrote the plugin's kubeconfig");
    }
    Ok(written)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    // A CA bundle may be large; a token is not.
    file::read_limited(path, 1 << 20)
}

/// The kubeconfig as YAML. Values are quoted as in JSON, which YAML reads the same way.
fn render(options: &Options, ca: Option<&[u8]>, token: &str) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let host = match options.host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => options.host.clone(),
    };
    let server = quoted(&format!("{}://{host}:{}", options.protocol, options.port));
    let trust = match ca {
        Some(ca) => format!("certificate-authority-data: {}", quoted(&BASE64_STANDARD.encode(ca))),
        None => "insecure-skip-tls-verify: true".to_owned(),
    };
    format!(
        "# Written by the node agent for its CNI plugin. Changes are overwritten.
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: {server}
    {trust}
users:
- name: istio-cni
  user:
    token: {}
contexts:
- name: istio-cni-context
  context:
    cluster: local
    user: istio-cni
current-context: istio-cni-context
",
        quoted(token)
    )
}

/// Removes the half-written files of earlier runs.
pub fn sweep(run_dir: &Path) -> Result<()> {
    for name in names(run_dir)?.iter().filter(|name| file::temp_of(name) == Some(FILE)) {
        file::remove(&run_dir.join(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_trust_and_token() {
        let check = |host: &str, ca: Option<&[u8]>, token: &str, expected: [&str; 3]| {
            let options = Options {
                protocol: "https".to_owned(),
                host: host.to_owned(),
                port: "443".to_owned(),
                service_account_dir: PathBuf::new(),
                ca_file: None,
                skip_tls_verify: ca.is_none(),
                mode: 0o600,
            };
            let text = render(&options, ca, token);
            let value = crate::pod::yaml::document(&text).unwrap();
            assert_eq!(value["clusters"][0]["cluster"]["server"], expected[0]);
            let cluster = value["clusters"][0]["cluster"].as_object().unwrap();
            assert_eq!(cluster.get("certificate-authority-data").map_or("", |ca| ca.as_str().unwrap()), expected[1]);
            assert_eq!(cluster.get("insecure-skip-tls-verify").is_some(), ca.is_none());
            assert_eq!(value["users"][0]["user"]["token"], expected[2]);
            assert_eq!(value["current-context"], value["contexts"][0]["name"]);
        };
        check("10.96.0.1", Some(b"PEM"), "t.o-k_n", ["https://10.96.0.1:443", "UEVN", "t.o-k_n"]);
        check("fd00::1", None, "a\"b\\c: #", ["https://[fd00::1]:443", "", "a\"b\\c: #"]);
        check("api.example", Some(b""), "", ["https://api.example:443", "", ""]);
    }
}
