//! What instances report of themselves decides where new work goes, and leaves what is there alone.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use support::lab::{Family, Host, VIP};
use support::{Connection, Curl, Entry, Router, Scene, TestLab, router};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const LISTEN: &str = "10.77.2.1:9190";
const LIMIT: Duration = Duration::from_secs(30);

/// Three instances that may report.
fn scene(reports: &str, thresholds: &str) -> Scene {
    let lab = TestLab::with_backends(3);
    let folder = lab.host_dir(Host::Gateway);
    fs::create_dir_all(&folder).unwrap();
    let token_file = folder.join("token");
    fs::write(&token_file, TOKEN).unwrap();
    let pool = format!(
        "reports = {{ token_file = \"{}\", {reports} }}\nthresholds = {{ {thresholds} }}",
        token_file.display()
    );
    Scene::in_lab(lab, &format!("\n[reports]\nlisten = \"{LISTEN}\"\n"), &pool, &[])
}

/// Reports from the instance's own host; the status of the answer.
fn report(scene: &Scene, number: u8, token: &str, values: Value) -> u16 {
    let mut body = values;
    body["instance"] = json!(format!("nginx{number}"));
    Curl::on(&scene.lab, Host::Backend(number))
        .header(&format!("Authorization: Bearer {token}"))
        .arg("--data")
        .arg(body.to_string())
        .get(format!("http://{LISTEN}/v1/report"))
        .status
}

/// One connection of each instance, by the number of the instance.
fn one_on_each(scene: &Scene) -> Vec<Connection> {
    let mut held: Vec<(String, Connection)> = (0..3)
        .map(|_| {
            let mut connection = scene.connect(Entry::Handoff);
            (connection.get("/whoami").unwrap().text(), connection)
        })
        .collect();
    held.sort_by(|(one, _), (other, _)| one.cmp(other));
    let names: BTreeSet<&str> = held.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    held.into_iter().map(|(_, connection)| connection).collect()
}

/// Which backends serve twelve new connections that come one after the other.
fn served_by(scene: &Scene) -> BTreeSet<String> {
    let ask = |number: usize| {
        let entry = [Entry::Handoff, Entry::Auto, Entry::Relay][number % 3];
        let reply = scene.connect(entry).get("/whoami").unwrap();
        assert_eq!(reply.status, 200);
        reply.text().trim().to_owned()
    };
    (0..12).map(ask).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn instance(scene: &Scene, number: u8) -> Value {
    let all = scene.router.ctl(["instances"]);
    let name = format!("nginx{number}");
    all.as_array().unwrap().iter().find(|instance| instance["name"] == name).unwrap().clone()
}

#[test]
#[ignore = "needs root"]
fn an_instance_that_reports_strain_gets_no_new_work_while_its_connections_stay() {
    let scene = scene("required = false", "window = \"1ms\"");
    let mut held = one_on_each(&scene);
    assert_eq!(report(&scene, 2, TOKEN, json!({ "cpu_idle_percent": 30 })), 200);
    assert_eq!(instance(&scene, 2)["reported"]["status"], "strained");
    assert_eq!(served_by(&scene), names(&["backend1", "backend3"]));
    assert_eq!(held[1].get("/whoami").unwrap().text(), "backend2\n");

    // In between the two thresholds nothing changes; below both it does.
    assert_eq!(report(&scene, 2, TOKEN, json!({ "cpu_idle_percent": 53 })), 200);
    assert_eq!(served_by(&scene), names(&["backend1", "backend3"]));
    assert_eq!(report(&scene, 2, TOKEN, json!({ "cpu_idle_percent": 80 })), 200);
    // Flows that have ended count for a moment more, and would make the others look busier than they are.
    scene
        .router
        .eventually(Duration::from_secs(20), "only the held ones are left", |_| scene.sessions() == 3);
    assert_eq!(served_by(&scene), names(&["backend1", "backend2", "backend3"]));
    drop(held);
    scene.comes_to_rest();
}

#[test]
#[ignore = "needs root"]
fn reports_with_wrong_tokens_or_absurd_values_change_nothing_and_are_counted() {
    let scene = scene("required = false", "window = \"1ms\"");
    let busy = || json!({ "cpu_idle_percent": 0 });
    assert_eq!(report(&scene, 2, "0123456789abcdef0123456789abcdeX", busy()), 401);
    assert_eq!(report(&scene, 2, TOKEN, json!({ "cpu_idle_percent": -3 })), 400);
    assert_eq!(report(&scene, 2, TOKEN, json!({ "cpu_idle_percent": 0, "time": 99_999_999_999u64 })), 400);
    assert_eq!(served_by(&scene), names(&["backend1", "backend2", "backend3"]));
    for reason in ["wrong_token", "out_of_range", "future_clock"] {
        let series = format!("router_reports_refused_total{{reason=\"{reason}\"}}");
        assert_eq!(scene.metric(&series), 1, "{reason}");
    }
}

#[test]
#[ignore = "needs root"]
fn a_reload_reads_tokens_anew_and_a_bad_token_file_changes_nothing() {
    let scene = scene("required = false", "window = \"1ms\"");
    let token_file = scene.lab.host_dir(Host::Gateway).join("token");
    let next = "fedcba9876543210fedcba9876543210";
    let idle = || json!({ "cpu_idle_percent": 90 });
    let both = |scene: &Scene| (report(scene, 2, TOKEN, idle()), report(scene, 2, next, idle()));
    let mut held = one_on_each(&scene);

    fs::write(&token_file, next).unwrap();
    assert_eq!(both(&scene), (200, 401), "nobody has said that it is to be read");
    let reload = || scene.router.routerctl().arg("reload").output().unwrap();
    assert!(reload().status.success());
    assert_eq!(both(&scene), (401, 200));

    fs::write(&token_file, "too-short\n").unwrap();
    let refused = reload();
    let said = String::from_utf8_lossy(&refused.stderr);
    let place = format!("{}:", scene.router.configuration_file().display());
    assert!(!refused.status.success() && said.contains(&place), "{said}");
    assert!(said.contains("has no token in line 1") && !said.contains("too-short"), "{said}");
    assert_eq!(both(&scene), (401, 200));
    fs::remove_file(&token_file).unwrap();
    scene.router.signal(libc::SIGHUP);
    scene.router.eventually(LIMIT, "the signal is heard", |router| {
        router.ctl(["status"])["configuration"]["reloads_refused"] == 2
    });
    assert!(scene.router.log().contains("cannot be read: No such file"), "{}", scene.router.log());
    assert_eq!(both(&scene), (401, 200));

    fs::write(&token_file, TOKEN).unwrap();
    scene.router.signal(libc::SIGHUP);
    scene.router.eventually(LIMIT, "the signal is heard", |_| both(&scene) == (200, 401));
    for connection in &mut held {
        assert_eq!(connection.get("/whoami").unwrap().status, 200, "nobody else has noticed");
    }
}

/// `router-agent` beside an instance; ended when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn agent(scene: &Scene, number: u8) -> Agent {
    agent_with(&scene.lab, number, LISTEN.parse().unwrap(), &[])
}

fn agent_with(lab: &TestLab, number: u8, router: SocketAddr, further: &[&str]) -> Agent {
    let token_file = lab.host_dir(Host::Gateway).join("token");
    let child = lab
        .command(Host::Backend(number), router::binary("router-agent"))
        .args(["--router", &router.to_string(), "--interval", "200ms"])
        .args(["--instance", &format!("nginx{number}")])
        .arg("--token-file")
        .arg(token_file)
        .args(further)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    Agent(child)
}

#[test]
#[ignore = "needs root"]
fn a_silent_instance_is_out_of_contact_and_rejoins_by_itself() {
    let off = "strained_cpu = -1, exhausted_cpu = -1, strained_memory = -1, exhausted_memory = -1";
    let scene = scene("ttl = \"6s\"", off);
    let _others = [agent(&scene, 1), agent(&scene, 3)];
    let second = agent(&scene, 2);
    scene.router.eventually(LIMIT, "all have reported", |_| {
        (1..=3).all(|number| instance(&scene, number)["reported"]["reported_seconds_ago"].is_number())
    });
    let mut held = one_on_each(&scene);
    drop(second);
    let becomes = |wanted: &str| {
        scene.router.eventually(LIMIT, wanted, |_| instance(&scene, 2)["health"] == wanted);
    };
    becomes("out-of-contact");
    assert_eq!(served_by(&scene), names(&["backend1", "backend3"]));
    assert_eq!(held[1].get("/whoami").unwrap().text(), "backend2\n", "its connections stay");
    let _again = agent(&scene, 2);
    becomes("up");
    assert_eq!(served_by(&scene), names(&["backend1", "backend2", "backend3"]));
}

#[test]
#[ignore = "needs root"]
fn an_application_says_through_its_agent_what_it_has_loaded_and_how_full_it_is() {
    let lab = TestLab::with_backends(2);
    let folder = lab.host_dir(Host::Gateway);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("token"), TOKEN).unwrap();
    let site = format!(
        r#"
[reports]
listen = "{LISTEN}"

[[listener]]
name = "web"
address = "{VIP}:80"
resource = {{ query = "map" }}

[[pool]]
name = "maps"
reports = {{ token_file = "{token}" }}
thresholds = {{ strained_cpu = -1, exhausted_cpu = -1, strained_memory = -1, exhausted_memory = -1, strained_sessions = [100, 50], window = "1ms" }}

{instances}
"#,
        token = folder.join("token").display(),
        instances = router::instances(Family::V4, "nginx", 2)
    );
    let router = Router::start(&lab, &router::configuration(&lab, "", "", &site));
    let sales = || Curl::on(&lab, Host::Client).get(format!("http://{VIP}/whoami?map=sales")).text();
    // The application replaces its file whole, as the agent may read it at any moment.
    let says = |number: u8, status: Value| {
        let file = folder.join(format!("nginx{number}.json"));
        fs::write(file.with_extension("new"), status.to_string()).unwrap();
        fs::rename(file.with_extension("new"), file).unwrap();
    };
    says(1, json!({ "sessions": 3, "loaded_resources": [] }));
    says(2, json!({ "sessions": 9, "loaded_resources": ["sales"] }));
    let file = folder.join("{instance}.json").display().to_string();
    let start = |number| agent_with(&lab, number, LISTEN.parse().unwrap(), &["--status-file", &file]);
    let _agents = [start(1), start(2)];
    let reported = |name: &str, status: &str| {
        let what = format!("{name} is {status}");
        router.eventually(LIMIT, &what, |router| {
            let all = router.ctl(["instances"]);
            all.as_array().unwrap().iter().any(|one| {
                one["name"] == name
                    && one["reported"]["status"] == status
                    && one["reported"]["reported_seconds_ago"].is_number()
            })
        });
    };
    reported("nginx1", "available");
    reported("nginx2", "available");
    for _ in 0..4 {
        assert_eq!(sales(), "backend2\n", "the map is loaded there");
    }
    says(2, json!({ "sessions": 100, "loaded_resources": ["sales"] }));
    reported("nginx2", "strained");
    assert_eq!(sales(), "backend1\n", "the map opens where there is room");
}

support::over_both_families! {
    instances_join_an_empty_pool_by_reporting_and_are_forgotten_after_a_long_silence
}

fn instances_join_an_empty_pool_by_reporting_and_are_forgotten_after_a_long_silence(family: Family) {
    let lab = TestLab::with_backends(2);
    let folder = lab.host_dir(Host::Gateway);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("token"), TOKEN).unwrap();
    let listen = SocketAddr::new(family.source(), 9190);
    let vip = SocketAddr::new(family.vip(), 80);
    let site = format!(
        r#"
[reports]
listen = "{listen}"

[[listener]]
name = "web"
address = "{vip}"

[[pool]]
name = "farm"
check = {{ type = "http", path = "/health", interval = "100ms", timeout = "100ms" }}
reports = {{ token_file = "{token}", allow_registration = true, ttl = "1s", forget_after = "3s" }}
thresholds = {{ strained_cpu = -1, exhausted_cpu = -1, strained_memory = -1, exhausted_memory = -1 }}
"#,
        token = folder.join("token").display()
    );
    let router = Router::start(&lab, &router::configuration(&lab, "", "", &site));
    let ask = || Curl::on(&lab, Host::Client).get(format!("http://{vip}/whoami"));
    let serving = || -> BTreeSet<String> {
        let all = router.ctl(["instances"]);
        let serving = all.as_array().unwrap().iter().filter(|one| one["serving"] == true);
        serving.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ask().status, 503, "nobody has joined");

    let join = |number: u8| {
        let address = SocketAddr::new(family.address(Host::Backend(number)), 80).to_string();
        agent_with(&lab, number, listen, &["--address", &address])
    };
    let _first = join(1);
    router.eventually(LIMIT, "the first has joined", |_| serving() == names(&["nginx1"]));
    assert_eq!(ask().text(), "backend1\n");
    let second = join(2);
    router.eventually(LIMIT, "the second has joined", |_| serving() == names(&["nginx1", "nginx2"]));
    let answers: BTreeSet<String> = (0..4).map(|_| ask().text().trim().to_owned()).collect();
    assert_eq!(answers, names(&["backend1", "backend2"]));

    drop(second);
    router.eventually(LIMIT, "the silent one is forgotten", |router| {
        router.ctl(["instances"]).as_array().unwrap().len() == 1
    });
    let answers: BTreeSet<String> = (0..4).map(|_| ask().text().trim().to_owned()).collect();
    assert_eq!(answers, names(&["backend1"]));
}
