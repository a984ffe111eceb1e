//! Health, readiness and metrics, as the kubelet and Prometheus ask for them.

use super::*;
use std::net::{TcpListener, TcpStream};

#[test]
fn health_and_metrics() {
    let mut world = World::without_agent(&[]);
    let conf = world.node.net_dir().join("10-net.conflist");
    std::fs::write(conf, r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}"#).unwrap();
    world.start_agent();
    world.start_ztunnel();
    eventually("ready", || world.get(HEALTH, "/readyz").is_some_and(|(status, _)| status == 200));
    assert_eq!(world.get(HEALTH, "/healthz").unwrap(), (200, "ok\n".to_owned()));
    assert_eq!(world.get(HEALTH, "/nothing").unwrap().0, 404);
    let netns = world.make_pod("mesh", "web", "10.48.1.2");
    world.add("mesh", "web", &netns, "10.48.1.2");
    eventually("its annotation comes back", || world.metrics().contains("events_total{type=\"update\"} "));
    world.server.delete(Kind::Pods, "mesh", "web");
    eventually("forgotten", || world.state("web") == "unknown");
    let metrics = world.metrics();
    for line in [
        "istio_cni_installs_total{result=\"SUCCESS\"} 1\n",
        "istio_cni_install_ready 1\n",
        "nodeagent_reconcile_events_total{type=\"add\"} ",
        "nodeagent_reconcile_events_total{type=\"update\"} ",
        "nodeagent_reconcile_events_total{type=\"delete\"} 1\n",
        "ztunnel_connected 1\n",
        "istio_cni_plugin_requests_total{response_code=\"200\"} 1\n",
        "ferrule_enrolments{state=\"enrolled\"} ",
        "ferrule_enrolment_seconds_count{step=\"rules\"} 1\n",
        "ferrule_enrolment_seconds_count{step=\"ztunnel\"} 1\n",
        "ferrule_enrolment_seconds_count{step=\"total\"} 1\n",
        "ferrule_api_request_seconds_count{verb=\"list\"} 2\n",
        "# TYPE istio_cni_repair_pods_repaired_total counter\n",
        "# TYPE ferrule_verification_repairs_total counter\n",
        "# TYPE ferrule_watch_restarts_total counter\n",
        "ferrule_conf_fights_total 0\n",
        "ferrule_build_info{version=",
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
        "process_open_fds ",
        "process_threads ",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[test]
fn readiness_says_what_is_missing_one_reason_a_line() {
    let mut world = World::without_agent(&[]);
    world.server.misbehave("list pods", None, crate::apiserver::Fault::Answer(403, None));
    world.launch_agent();
    let reasons = || world.get(HEALTH, "/readyz").filter(|(status, _)| *status == 503).map(|(_, body)| body);
    eventually("two reasons", || {
        let body = reasons().unwrap_or_default();
        body.lines().any(|line| line == "starting: the API server has not been read yet")
            && body.lines().any(|line| line.starts_with("installation: waiting for a CNI configuration"))
    });
    assert_eq!(world.get(HEALTH, "/healthz").unwrap().0, 200, "it makes progress");
}

/// Whoever reaches the port can connect and say nothing: the kubelet is answered all the same.
#[test]
fn those_who_say_nothing_keep_nobody_out() {
    let mut world = World::without_agent(&[]);
    world.start_agent();
    let silent: Vec<_> =
        world.node.host.enter(|| (0..40).map(|_| TcpStream::connect(("127.0.0.1", HEALTH)).unwrap()).collect());
    for _ in 0..3 {
        assert_eq!(world.get(HEALTH, "/healthz"), Some((200, "ok\n".to_owned())));
    }
    drop(silent);
}

#[test]
fn a_port_in_use_is_named_and_holds_nothing_else_up() {
    let mut world = World::without_agent(&[]);
    let taken = world.node.host.enter(|| TcpListener::bind(("0.0.0.0", MONITORING)).unwrap());
    world.start_agent();
    let line = format!("monitoring port: listen on TCP port {MONITORING} (--monitoring-port): Address already in use");
    let named = |body: &str| body.lines().any(|reason| reason.starts_with(&line));
    eventually("named", || world.get(HEALTH, "/readyz").is_some_and(|(_, body)| named(&body)));
    drop(taken);
    eventually("got", || !world.get(HEALTH, "/readyz").is_some_and(|(_, body)| named(&body)));
    assert!(world.metrics().contains("ferrule_build_info"));
}
