//! What becomes of a pool when its instances fail their checks, and when one comes back.

use std::time::Duration;

use support::lab::{Host, peers};
use support::{Connection, Curl, Entry, Scene, TestLab};

const LIMIT: Duration = Duration::from_secs(30);

fn scene(pool: &str) -> Scene {
    let scene = Scene::in_lab(TestLab::with_backends(2), "", pool, &[]);
    scene.router.eventually(LIMIT, "both instances are checked", |_| health(&scene, 1) != "unknown");
    scene
}

fn health(scene: &Scene, number: u8) -> String {
    let all = scene.router.ctl(["instances"]);
    let name = format!("nginx{number}");
    let instance = all.as_array().unwrap().iter().find(|instance| instance["name"] == name).unwrap();
    instance["health"].as_str().unwrap().to_owned()
}

/// So many connections at a time, and how many of them each backend serves.
fn spread(scene: &Scene, count: usize) -> [usize; 2] {
    let mut held: Vec<Connection> = (0..count).map(|_| scene.connect(Entry::Handoff)).collect();
    let answers: Vec<String> = held.iter_mut().map(|one| one.get("/whoami").unwrap().text()).collect();
    let of = |number: usize| answers.iter().filter(|name| name.trim() == format!("backend{number}")).count();
    [of(1), of(2)]
}

#[test]
#[ignore = "needs root"]
fn checks_that_every_instance_fails_are_believed_unless_the_pool_says_otherwise() {
    // Nginx answers 200 to everything.
    let scene = scene(
        "check = { type = \"http\", path = \"/health\", expect = [\"204\"], interval = \"100ms\", timeout = \"100ms\" }",
    );
    let ask = || Curl::on(&scene.lab, Host::Client).get(Entry::Auto.url("/whoami"));
    scene
        .router
        .eventually(LIMIT, "both are down", |_| (1..=2).all(|number| health(&scene, number) == "down"));
    assert_eq!(ask().status, 503);
    scene.router.ctl(["pool", "set", "nginx", "all_down=fail-open"]);
    assert_eq!(ask().status, 200);
    assert_eq!(scene.router.ctl(["instances"])[0]["serving"], true, "though it is down");
    let explained = scene.router.ctl(["explain", "--listener=auto", "--client=10.77.1.2", "--path=/whoami"]);
    assert!(explained.to_string().contains("fail-open"), "the trace says why it was chosen: {explained}");
    scene.router.ctl(["pool", "set", "nginx", "all_down=fail-closed"]);
    assert_eq!(ask().status, 503);
}

#[test]
#[ignore = "needs root"]
fn an_instance_that_comes_back_is_not_flooded() {
    let scene = scene(
        "slow_start = \"1d\"\ncheck = { type = \"http\", path = \"/health\", interval = \"100ms\", timeout = \"100ms\" }",
    );
    scene.router.eventually(LIMIT, "both serve", |_| (1..=2).all(|number| health(&scene, number) == "up"));
    assert_eq!(spread(&scene, 8), [4, 4], "those that were found up have their whole share");
    scene.comes_to_rest();
    peers::stop_one(&scene.lab, 2).unwrap();
    scene.router.eventually(LIMIT, "the second is down", |_| health(&scene, 2) == "down");
    peers::start_one(&scene.lab, 2).unwrap();
    scene.router.eventually(LIMIT, "the second is back", |_| health(&scene, 2) == "up");
    let [first, second] = spread(&scene, 20);
    assert!(second <= 1 && first + second == 20, "weight 1 of 101: {first} and {second}");
    scene.comes_to_rest();
    scene.router.ctl(["pool", "set", "nginx", "slow_start=1ms"]);
    assert_eq!(spread(&scene, 8), [4, 4], "its whole share");
}
