//! Kubeconfig files: the parts that work without running a program.

use super::access::{Config, Material, Trust};
use super::proxies::{Proxies, proxy};
use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use crate::pod::yaml;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::path::{Path, PathBuf};

/// Largest kubeconfig, bytes.
const LIMIT: usize = 4 << 20;

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    current_context: Option<String>,
    contexts: Option<Vec<NamedContext>>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: ContextEntry,
}

#[derive(Deserialize)]
struct ContextEntry {
    cluster: String,
    #[serde(default)]
    user: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: Option<String>,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<IgnoredAny>,
    #[serde(rename = "as")]
    impersonate: Option<IgnoredAny>,
    exec: Option<IgnoredAny>,
    auth_provider: Option<IgnoredAny>,
}

/// Reads the files of a `KUBECONFIG` value; those that do not exist are passed over, as kubectl does.
pub(super) fn load(paths: &str, proxies: &Proxies) -> Result<Config> {
    let mut files = Vec::new();
    for path in paths.split(':').filter(|p| !p.is_empty()).map(Path::new) {
        match crate::sys::file::read_limited(path, LIMIT) {
            Ok(bytes) => files.push((path, bytes)),
            Err(e) if e.kind() == Kind::NotFound => {}
            Err(e) => return Err(e.context(format!("kubeconfig {}", path.display()))),
        }
    }
    if files.is_empty() {
        return Err(Error::of(Kind::NotFound, format!("KUBECONFIG={paths}: there is no such file")));
    }
    decode(&files, proxies)
}

/// Decodes files with their paths, in order: of a thing that is in several, the first counts. Pure.
pub fn decode(files: &[(&Path, Vec<u8>)], proxies: &Proxies) -> Result<Config> {
    let name = |path: &Path| format!("kubeconfig {}", path.display());
    let parsed = files.iter().map(|(path, bytes)| Ok((*path, parse(bytes).with_context(|| name(path))?)));
    let parsed = parsed.collect::<Result<Vec<_>>>()?;
    let all = || files.iter().map(|(path, _)| path.display().to_string()).collect::<Vec<_>>().join(":");
    config(parsed, proxies).with_context(|| format!("kubeconfig {}", all()))
}

fn parse(bytes: &[u8]) -> Result<File> {
    let text = std::str::from_utf8(bytes).map_err(|_| invalid!("not UTF-8"))?;
    // As JSON, the way Kubernetes' own tools read YAML. No message may quote the file: it holds secrets.
    let json = yaml::document(text).context("not YAML")?;
    let file: Option<File> = serde_json::from_value(json)
        .map_err(|_| invalid!("not a kubeconfig: a value in it is not of the kind that belongs there"))?;
    Ok(file.unwrap_or_default())
}

fn config(files: Vec<(&Path, File)>, proxies: &Proxies) -> Result<Config> {
    let current = files.iter().find_map(|(_, f)| f.current_context.clone().filter(|c| !c.is_empty()));
    let current = current.ok_or_else(|| invalid!("no current-context; choose one of the contexts in it"))?;
    let (mut contexts, mut clusters, mut users) = (Vec::new(), Vec::new(), Vec::new());
    for (path, file) in files {
        let dir = path.parent().unwrap_or(Path::new("")).to_owned();
        contexts.extend(file.contexts.into_iter().flatten());
        clusters.extend(file.clusters.into_iter().flatten().map(|c| (dir.clone(), c)));
        users.extend(file.users.into_iter().flatten().map(|u| (dir.clone(), u)));
    }
    let missing = |what: &str, name: &str| invalid!("there is no {what} {name:?}");
    let context = contexts.into_iter().find(|c| c.name == current).ok_or_else(|| missing("context", &current))?.context;
    let (cluster_dir, cluster) = clusters
        .into_iter()
        .find(|(_, c)| c.name == context.cluster)
        .ok_or_else(|| missing("cluster", &context.cluster))?;
    let (user_dir, user) = match context.user.filter(|u| !u.is_empty()) {
        None => (PathBuf::new(), User::default()),
        Some(name) => {
            let (dir, user) = users.into_iter().find(|(_, u)| u.name == name).ok_or_else(|| missing("user", &name))?;
            user.user.as_ref().map(User::supported).transpose().with_context(|| format!("user {name:?}"))?;
            (dir, user.user.unwrap_or_default())
        }
    };
    cluster.cluster.config(&cluster_dir, user, &user_dir, proxies)
}

impl User {
    fn supported(&self) -> Result<()> {
        let refused = [
            (self.exec.is_some(), "exec", "a credential plugin would have to be run"),
            (self.auth_provider.is_some(), "auth-provider", "such providers are built into other clients only"),
            (self.username.is_some(), "username", "Kubernetes no longer knows passwords"),
            (self.impersonate.is_some(), "as", "we act for nobody else"),
        ];
        match refused.iter().find(|(present, ..)| *present) {
            None => Ok(()),
            Some((_, key, why)) => {
                let instead = "use a token, a tokenFile or a client certificate, e.g. of a service account";
                Err(invalid!("{key} is not supported, {why}; {instead}"))
            }
        }
    }

    fn token(self, dir: &Path) -> Option<Material> {
        // As in client-go, a file wins over a token in place, which may be a copy of it that has expired.
        let file = self.token_file.filter(|f| !f.as_os_str().is_empty()).map(|file| Material::File(dir.join(file)));
        file.or_else(|| self.token.filter(|t| !t.is_empty()).map(|t| Material::Inline(t.into_bytes())))
    }
}

impl Cluster {
    fn config(self, dir: &Path, mut user: User, user_dir: &Path, proxies: &Proxies) -> Result<Config> {
        let server = self.server.unwrap_or_default().trim_end_matches('/').to_owned();
        if !server.starts_with("https://") && !server.starts_with("http://") {
            return Err(invalid!("the cluster's server is {server:?}; an https:// address is needed"));
        }
        if self.tls_server_name.is_some_and(|name| !name.is_empty()) {
            return Err(invalid!("tls-server-name is not supported; use an address that the certificate is for"));
        }
        let authorities =
            material("certificate-authority-data", self.certificate_authority_data, self.certificate_authority, dir)?;
        let trust = match authorities {
            _ if server.starts_with("http://") => Trust::Plain,
            _ if self.insecure_skip_tls_verify == Some(true) => Trust::Anyone,
            Some(authorities) => Trust::Authorities(authorities),
            None => return Err(invalid!("the cluster has no certificate-authority, and no others are trusted")),
        };
        let certificate = material(
            "client-certificate-data",
            user.client_certificate_data.take(),
            user.client_certificate.take(),
            user_dir,
        )?;
        let key = material("client-key-data", user.client_key_data.take(), user.client_key.take(), user_dir)?;
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(invalid!("client-certificate and client-key are needed both or not at all")),
        };
        let proxy = match self.proxy_url.filter(|url| !url.is_empty()) {
            Some(url) => Some(proxy(&url).context("proxy-url")?),
            None => proxies.for_server(&server)?,
        };
        Ok(Config { server, trust, identity, token: user.token(user_dir), proxy })
    }
}

/// Data in place wins over a file; a file is relative to the kubeconfig's folder.
fn material(key: &str, data: Option<String>, file: Option<PathBuf>, dir: &Path) -> Result<Option<Material>> {
    if let Some(mut data) = data.filter(|d| !d.is_empty()) {
        data.retain(|c| !c.is_ascii_whitespace());
        let bytes = STANDARD.decode(data).map_err(|e| invalid!("{key} is not base64: {e}"))?;
        return Ok(Some(Material::Inline(bytes)));
    }
    Ok(file.filter(|f| !f.as_os_str().is_empty()).map(|file| Material::File(dir.join(file))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "apiVersion: v1\nkind: Config\ncurrent-context: here\npreferences: {}\ncontexts:\n\
        - name: other\n  context: {cluster: far, user: someone}\n- name: here\n  context: {cluster: c, user: u, namespace: n}\n\
        clusters:\n- name: c\n  cluster: CLUSTER\nusers:\n- name: u\n  user: USER\n";

    fn load(cluster: &str, user: &str) -> Result<Config> {
        let text = WHOLE.replace("CLUSTER", cluster).replace("USER", user);
        config(vec![(Path::new("/etc/k/config"), parse(text.as_bytes())?)], &Proxies::default())
    }

    #[test]
    fn what_works() {
        let c = load("{server: 'https://a:6443/', certificate-authority: ca.pem}", "{token: abc}").unwrap();
        assert_eq!(c.server, "https://a:6443");
        assert_eq!(c.trust, Trust::Authorities(Material::File("/etc/k/ca.pem".into())));
        assert_eq!(c.token, Some(Material::Inline(b"abc".to_vec())));
        assert_eq!(c.identity, None);
        let c = load(
            "{server: 'https://[::1]:6443/prefix', certificate-authority: x, certificate-authority-data: aGk=}",
            "{token: old, tokenFile: t, client-certificate: /abs/c.pem, client-key-data: aGk=}",
        )
        .unwrap();
        assert_eq!(c.server, "https://[::1]:6443/prefix");
        assert_eq!(c.trust, Trust::Authorities(Material::Inline(b"hi".to_vec())));
        assert_eq!(c.token, Some(Material::File("/etc/k/t".into())));
        assert_eq!(c.identity, Some((Material::File("/abs/c.pem".into()), Material::Inline(b"hi".to_vec()))));
        let c = load("{server: 'https://a', insecure-skip-tls-verify: true, proxy-url: 'http://p:1'}", "{}").unwrap();
        assert_eq!((c.trust, c.token), (Trust::Anyone, None));
        assert!(c.proxy.is_some());
        assert_eq!(load("{server: 'http://a'}", "null").unwrap().trust, Trust::Plain);
    }

    #[test]
    fn what_is_refused() {
        let check = |cluster: &str, user: &str, expected: &str| {
            let text = load(cluster, user).map(|_| "accepted".to_owned()).unwrap_or_else(|e| e.to_string());
            assert!(text.contains(expected), "{cluster} {user}: {text}");
        };
        let good = "{server: 'https://a', certificate-authority: ca}";
        check(good, "{exec: {command: aws, args: [x]}}", "user \"u\": exec is not supported, a credential plugin");
        check(good, "{auth-provider: {name: gcp}}", "auth-provider is not supported");
        check(good, "{username: a, password: b}", "username is not supported");
        check(good, "{as: somebody}", "as is not supported");
        check(good, "{client-key: k}", "client-certificate and client-key are needed both");
        check(good, "{client-key-data: '***'}", "client-key-data is not base64");
        check("{server: 'https://a'}", "{}", "no certificate-authority");
        check("{server: 'a:6443', certificate-authority: x}", "{}", "an https:// address is needed");
        check("{server: 'https://a', certificate-authority: x, tls-server-name: b}", "{}", "tls-server-name");
        check(
            "{server: 'https://a', insecure-skip-tls-verify: true, proxy-url: 'socks5://p'}",
            "{}",
            "proxy-url: a socks5",
        );
        let alone = |text: &str| config(vec![(Path::new("k"), parse(text.as_bytes())?)], &Proxies::default());
        assert!(alone("").unwrap_err().to_string().contains("no current-context"));
        assert!(alone("current-context: a").unwrap_err().to_string().contains("no context \"a\""));
        for token in ["[4711]", "4711", "{a: 4711}", "'4711"] {
            let text = alone(&format!("users: [{{name: u, user: {{token: {token}}}}}]")).unwrap_err().to_string();
            assert!(!text.contains("4711"), "{text}");
        }
    }

    #[test]
    fn several_files_count_in_order() {
        let (a, b) =
            ("current-context: here", WHOLE.replace("CLUSTER", "{server: 'http://b'}").replace("USER", "{token: t}"));
        let files = vec![
            (Path::new("/a/one"), parse(a.as_bytes()).unwrap()),
            (
                Path::new("/b/two"),
                parse(b.replace("current-context: here", "current-context: other").as_bytes()).unwrap(),
            ),
        ];
        assert_eq!(config(files, &Proxies::default()).unwrap().server, "http://b");
        assert!(super::load("/nonexistent/a:/nonexistent/b", &Proxies::default()).is_err());
    }

    #[test]
    fn truncated_anywhere_never_panics() {
        let text =
            WHOLE.replace("CLUSTER", "{server: 'https://a', certificate-authority: c}").replace("USER", "{token: t}");
        for end in 0..text.len() {
            let _ = parse(&text.as_bytes()[..end]).and_then(|f| config(vec![(Path::new("k"), f)], &Proxies::default()));
        }
    }
}
