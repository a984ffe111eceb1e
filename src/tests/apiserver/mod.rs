//! An API server for the tests and the bench: real HTTP/1.1 over TLS, with the behaviour that a node agent can notice
//! (resourceVersions, pages, watches with bookmarks, selectors, metadata only, merge patches, preconditions), shaped
//! after recorded answers of kube-apiserver 1.36, and with switches to misbehave.
//!
//! A thread per connection; nothing is shared but one lock over the objects. Ends with its value.
#![allow(dead_code, reason = "each user needs another part of it")]

mod fault;
mod serve;
mod state;
mod store;
mod tls;
mod wire;

pub use fault::Fault;
pub use state::Patch;
pub use store::{Kind, Object};

use fault::Planned;
use serde_json::{Value, json};
use state::Inner;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// A running server, and a folder laid out as a pod's service account (`token`, `ca.crt`) with a `kubeconfig` beside.
pub struct ApiServer {
    inner: Arc<Inner>,
    port: u16,
    dir: PathBuf,
    listening: Option<(Arc<TcpListener>, JoinHandle<()>)>,
    authorities: u32,
}

impl ApiServer {
    /// Starts on a free port of 127.0.0.1, its files in `dir`.
    pub fn start(dir: &Path) -> Self {
        let certificates = Arc::new(tls::make(1));
        let inner = Arc::new(Inner::new(certificates));
        let mut server = ApiServer { inner, port: 0, dir: dir.to_owned(), listening: None, authorities: 1 };
        server.listen();
        server.write_token("token-1");
        server.write_ca();
        server.write_kubeconfig();
        server
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with `token` and `ca.crt`, for `--service-account-dir`.
    pub fn service_account_dir(&self) -> &Path {
        &self.dir
    }

    /// A kubeconfig with `tokenFile` and `certificate-authority`, for `KUBECONFIG`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// The client certificate and its key, PEM: accepted instead of a token.
    pub fn client_certificate(&self) -> (String, String) {
        let state = self.inner.state();
        (state.certificates.client_pem.clone(), state.certificates.client_key_pem.clone())
    }

    /// Creates or replaces an object, kind and apiVersion left out.
    pub fn put(&self, kind: Kind, object: Value) -> Arc<Object> {
        let object = self.inner.store().put(kind, object);
        self.inner.changed();
        object
    }

    /// Changes an object by a merge patch.
    pub fn merge(&self, kind: Kind, namespace: &str, name: &str, patch: &Value) {
        let mut store = self.inner.store();
        let key = (kind, namespace.to_owned(), name.to_owned());
        let mut value = store.objects.get(&key).expect("the object is there").value.clone();
        store::merge(&mut value, patch);
        store.put(kind, value);
        drop(store);
        self.inner.changed();
    }

    /// Deletes an object at once; returns whether it was there.
    pub fn delete(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        let gone = self.inner.store().remove(&(kind, namespace.to_owned(), name.to_owned()));
        self.inner.changed();
        gone.is_some()
    }

    /// An object as it is now.
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        self.inner.store().objects.get(&(kind, namespace.to_owned(), name.to_owned())).map(|o| o.value.clone())
    }

    /// A namespace with these labels, as a server would hold it.
    pub fn put_namespace(&self, name: &str, labels: Value) {
        self.put(Kind::Namespaces, namespace(name, labels));
    }

    /// Sets or removes (null) labels of a namespace.
    pub fn label_namespace(&self, name: &str, labels: Value) {
        self.merge(Kind::Namespaces, "", name, &json!({ "metadata": { "labels": labels } }));
    }

    /// A running pod with these labels and IPs, as a server would hold it.
    pub fn put_pod(&self, namespace: &str, name: &str, node: &str, labels: Value, ips: &[&str]) -> Arc<Object> {
        self.put(Kind::Pods, pod(namespace, name, node, labels, ips))
    }

    /// A value of a pod's annotation `key`.
    pub fn annotation(&self, namespace: &str, name: &str, key: &str) -> Option<String> {
        let pod = self.get(Kind::Pods, namespace, name)?;
        pod["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }

    /// The patches that succeeded, in order.
    pub fn patches(&self) -> Vec<Patch> {
        self.inner.state().patches.clone()
    }

    /// The Events that were created, in order of their name.
    pub fn events(&self) -> Vec<Value> {
        let store = self.inner.store();
        store.objects.iter().filter(|(key, _)| key.0 == Kind::Events).map(|(_, o)| o.value.clone()).collect()
    }

    /// The requests that came, in order: `GET /api/v1/pods?limit=500`.
    pub fn requests(&self) -> Vec<String> {
        self.inner.state().requests.iter().map(|r| format!("{} {}", r.method, r.target)).collect()
    }

    /// A header of the last request.
    pub fn last_header(&self, name: &str) -> Option<String> {
        self.inner.state().requests.back().and_then(|r| r.header(name).map(str::to_owned))
    }

    /// How many requests begin like this.
    pub fn count(&self, prefix: &str) -> usize {
        self.requests().iter().filter(|r| r.starts_with(prefix)).count()
    }

    /// How many bookmarks were sent.
    pub fn bookmarks(&self) -> u64 {
        self.inner.bookmarks.load(Ordering::SeqCst)
    }

    /// How many connections were made.
    pub fn accepted(&self) -> u64 {
        self.inner.accepted.load(Ordering::SeqCst)
    }

    /// Misbehaves; see [`Planned`] for what `request` may be.
    pub fn misbehave(&self, request: &str, times: impl Into<Option<usize>>, fault: Fault) {
        let planned = Planned { request: request.to_owned(), times: times.into(), fault };
        self.inner.state().faults.push(planned);
    }

    /// Behaves again.
    pub fn behave(&self) {
        self.inner.state().faults.clear();
    }

    /// Bookmarks come this often.
    pub fn bookmark_every(&self, time: Duration) {
        self.inner.state().bookmark_every = time;
    }

    /// Forgets the history: watches from before now are too old, and pages of lists begun before are gone.
    pub fn compact(&self) {
        let mut store = self.inner.store();
        // One more version, so that whoever saw the last one is behind.
        store.version += 1;
        store.oldest = store.version;
        store.pages.clear();
    }

    /// Forgets the pages of lists begun before.
    pub fn expire_pages(&self) {
        self.inner.store().pages.clear();
    }

    /// Takes this token from now on and no other; the file is another matter.
    pub fn accept_token(&self, token: &str) {
        self.inner.state().tokens = vec![token.to_owned()];
    }

    /// Puts a token into the file, as the kubelet does: by a rename.
    pub fn write_token(&self, token: &str) {
        self.replace("token", token);
    }

    /// A new authority and certificate for new connections; the file is another matter.
    pub fn change_certificate(&mut self) {
        self.authorities += 1;
        self.inner.state().certificates = Arc::new(tls::make(self.authorities));
    }

    /// Puts the authority of today into the file.
    pub fn write_ca(&self) {
        let ca = self.inner.state().certificates.ca_pem.clone();
        self.replace("ca.crt", &ca);
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        let mut state = self.inner.state();
        self.inner.cuts.fetch_add(1, Ordering::SeqCst);
        for connection in state.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
        drop(state);
        self.inner.changed();
    }

    /// Stops listening and cuts every connection: connections are refused.
    pub fn go_down(&mut self) {
        let Some((listener, thread)) = self.listening.take() else { return };
        self.inner.state().stopping = true;
        // Wakes the thread that waits for a connection, from whatever network namespace.
        nix::sys::socket::shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both).unwrap();
        thread.join().unwrap();
        drop(listener);
        self.cut();
    }

    /// Listens again, on the same port.
    pub fn come_back(&mut self) {
        if self.listening.is_none() {
            self.listen();
        }
    }

    fn listen(&mut self) {
        self.inner.state().stopping = false;
        let listener = Arc::new(TcpListener::bind(("127.0.0.1", self.port)).unwrap());
        self.port = listener.local_addr().unwrap().port();
        let (inner, accepting) = (self.inner.clone(), listener.clone());
        let thread = std::thread::spawn(move || {
            for stream in accepting.incoming().map_while(Result::ok) {
                if inner.state().stopping {
                    break;
                }
                inner.accepted.fetch_add(1, Ordering::SeqCst);
                inner.state().connections.push(stream.try_clone().unwrap());
                let inner = inner.clone();
                std::thread::spawn(move || {
                    let local = stream.peer_addr();
                    // The peer may go at any moment.
                    let _ = serve_tls(&inner, &stream);
                    let _ = stream.shutdown(Shutdown::Both);
                    inner.state().connections.retain(|c| c.peer_addr().ok() != local.as_ref().ok().copied());
                });
            }
        });
        self.listening = Some((listener, thread));
    }

    fn write_kubeconfig(&self) {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\nclusters:\n- name: test\n  cluster:\n    \
             server: https://127.0.0.1:{}\n    certificate-authority: ca.crt\nusers:\n- name: test\n  user:\n    \
             tokenFile: token\ncontexts:\n- name: test\n  context: {{cluster: test, user: test}}\n",
            self.port
        );
        self.replace("kubeconfig", &text);
    }

    fn replace(&self, name: &str, text: &str) {
        let temporary = self.dir.join(format!(".{name}.new"));
        std::fs::write(&temporary, text).unwrap();
        std::fs::rename(temporary, self.dir.join(name)).unwrap();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.go_down();
    }
}

fn serve_tls(inner: &Arc<Inner>, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let config = inner.state().certificates.config.clone();
    let mut tls = rustls::ServerConnection::new(config).map_err(io::Error::other)?;
    let mut socket = stream;
    while tls.is_handshaking() {
        tls.complete_io(&mut socket)?;
    }
    let certified = tls.peer_certificates().is_some();
    serve::connection(inner, &mut rustls::StreamOwned::new(tls, ReadWrite(socket)), certified)
}

struct ReadWrite<'a>(&'a TcpStream);

impl Read for ReadWrite<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for ReadWrite<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A namespace as a server holds it.
pub fn namespace(name: &str, labels: Value) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": labels,
            "managedFields": [{"manager": "kubectl-create", "operation": "Update", "apiVersion": "v1",
                "time": "2026-11-30T05:13:08Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels":
                {".": {}, "f:istio.io/dataplane-mode": {}, "f:kubernetes.io/metadata.name": {}}}}}],
        },
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    })
}

/// A running pod as a server holds it.
pub fn pod(namespace: &str, name: &str, node: &str, labels: Value, ips: &[&str]) -> Value {
    let all: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
    json!({
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                "time": "2026-11-30T05:13:08Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels":
                {".": {}, "f:app": {}}}, "f:spec": {"f:containers": {"k:{\"name\":\"app\"}": {".": {}, "f:env": {".": {},
                "k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}}, "f:image": {}, "f:imagePullPolicy": {},
                "f:name": {}, "f:resources": {}, "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}}},
                "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:nodeName": {}, "f:restartPolicy": {},
                "f:schedulerName": {}, "f:securityContext": {}, "f:terminationGracePeriodSeconds": {}}}}],
        },
        "spec": {
            "containers": [{"name": "app", "image": "example.test/app:1", "ports": [{"containerPort": 8080,
                "protocol": "TCP"}], "env": [{"name": "A", "value": "b"}], "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent"}],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 0,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "nodeName": node,
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 300}],
            "priority": 0,
            "enableServiceLinks": true,
        },
        "status": {
            "phase": "Running",
            "podIP": ips.first().copied().unwrap_or_default(),
            "podIPs": all,
            "qosClass": "BestEffort",
        },
    })
}
