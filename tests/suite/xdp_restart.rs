//! What users notice when the daemon of a router with XDP dies and starts again: nothing.

use std::fs;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use support::balanced::Balanced;
use support::lab::{Family, Host};
use support::scene::is_prefix;
use support::{Curl, Entry, Router, Scene, TestLab, xdp};

support::over_both_families! {
    a_download_and_an_upload_of_handed_off_connections_outlive_the_daemon
    a_download_of_a_layer_4_flow_outlives_the_daemon
}

const LENGTH: u64 = 200 << 20;
/// Bytes a second: a transfer takes some seconds, and the daemon dies in the middle of it.
const RATE: &str = "32M";
const XDP: &str = "attach = \"xdp\"";

fn lab(backends: u8) -> TestLab {
    let lab = TestLab::with_backends(backends);
    xdp::open(&lab);
    lab
}

/// A transfer in the background, and where its bytes are in the end.
struct Transfer {
    arriving: PathBuf,
    curl: JoinHandle<Result<u16, String>>,
}

impl Transfer {
    fn download(lab: &TestLab, url: String) -> Self {
        let arriving = lab.state_dir().join("received");
        let curl = Curl::for_files(lab).arg("--limit-rate").arg(RATE);
        let file = arriving.clone();
        Self { arriving, curl: thread::spawn(move || curl.download(url, &file)) }
    }

    fn upload(lab: &TestLab, url: String) -> Self {
        let arriving = lab.host_dir(Host::Backend(1)).join("upload/sent");
        let curl = Curl::for_files(lab).arg("--limit-rate").arg(RATE);
        let file = lab.state_dir().join("files/200m");
        Self { arriving, curl: thread::spawn(move || curl.upload(&file, url)) }
    }

    /// Kills the daemon while XDP carries this, and starts it again.
    fn outlives(self, lab: &TestLab, router: &mut Router, carried: impl Fn(&Router) -> u64) {
        router.eventually(Duration::from_secs(20), "XDP carries it", |router| carried(router) > 5_000);
        router.kill();
        thread::sleep(Duration::from_millis(500));
        assert!(!self.curl.is_finished(), "it has ended too early for the death to matter");
        router.restart();
        let status = self.curl.join().unwrap();
        assert!(matches!(status, Ok(200 | 201 | 204)), "{status:?}");
        // The counters outlive the daemon.
        let frames = carried(router);
        assert!(frames > LENGTH / 3_000, "{frames} frames are not even half of the file");
        let original = lab.state_dir().join("files/200m");
        assert_eq!(fs::metadata(&self.arriving).unwrap().len(), LENGTH);
        assert!(is_prefix(&self.arriving, LENGTH, &original).unwrap(), "another file arrives");
    }
}

fn carried(router: &Router) -> u64 {
    let series = "router_xdp_frames_total{reason=\"carried\"} ";
    let metrics = router.metrics();
    metrics.lines().find_map(|line| line.strip_prefix(series)?.parse().ok()).unwrap_or(0)
}

fn hooks(router: &Router) -> Vec<String> {
    let status = router.ctl(["status"]);
    let interfaces = status["datapath"]["interfaces"].as_array().expect("the status has interfaces");
    interfaces.iter().map(|found| found["hook"].as_str().expect("a name").to_owned()).collect()
}

fn a_download_and_an_upload_of_handed_off_connections_outlive_the_daemon(family: Family) {
    let mut scene = Scene::over_in(family, lab(1), XDP);
    let download = Transfer::download(&scene.lab, scene.url(Entry::Handoff, "/files/200m"));
    download.outlives(&scene.lab, &mut scene.router, carried);
    assert_eq!(hooks(&scene.router), ["xdp-native", "xdp-native"]);
    scene.comes_to_rest();
    let before = carried(&scene.router);
    let upload = Transfer::upload(&scene.lab, scene.url(Entry::Handoff, "/upload/sent"));
    upload.outlives(&scene.lab, &mut scene.router, |router| carried(router) - before);
    scene.comes_to_rest();
    scene.assert_no_segment_but_an_overtaken_one_was_discarded();
}

fn a_download_of_a_layer_4_flow_outlives_the_daemon(family: Family) {
    let mut scene = Balanced::in_lab_with(lab(2), family, 2, XDP, "");
    let mut idle = scene.connect().unwrap();
    let instance = idle.get("/whoami").unwrap().text();
    let url = scene.url("/files/200m");
    let transfer = Transfer::download(&scene.lab, url);
    transfer.outlives(&scene.lab, &mut scene.router, carried);
    assert_eq!(hooks(&scene.router), ["xdp-native", "xdp-native"]);
    assert_eq!(idle.get("/whoami").unwrap().text(), instance, "a flow that slept meanwhile is still known");
}
