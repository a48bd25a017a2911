//! Whole simulations, as `routerctl simulate` runs them.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config;

/// A listener that finds the resource in a header, and one pool of these instances: name and weight.
fn plan(method: &str, instances: &[(&str, u32)], more: &str) -> (String, Plan) {
    let mut text = format!(
        "[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\nresource = {{ header = \"X-Map\" }}\n\
         [[pool]]\nname = \"p\"\nmethod = \"{method}\"\n"
    );
    for ((name, weight), number) in instances.iter().zip(1..) {
        text += &format!(
            "[[pool.instance]]\nname = \"{name}\"\naddress = \"10.1.0.{number}:80\"\nweight = {weight}\n"
        );
    }
    text += more;
    let plan = config::parse("t.toml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    (format!("{method}.toml"), plan)
}

fn settings(workload: Workload) -> Settings {
    Settings { listener: None, workload, load_model: None, seed: 7 }
}

fn run(plans: Vec<(String, Plan)>, settings: &Settings, count: u64) -> Report {
    simulate(plans, settings, Requests::Synthetic { count }, |_| true).unwrap()
}

/// Every request has one outcome, one rule unless the listener refused it, and one instance if it was served.
fn assert_conserved(report: &Report) {
    for one in &report.configurations {
        assert_eq!(one.outcomes.values().sum::<u64>(), report.requests);
        let refused = one.outcomes.get(tally::BAD_PATH).unwrap_or(&0);
        assert_eq!(one.rules.iter().map(|rule| rule.requests).sum::<u64>(), report.requests - refused);
        assert_eq!(one.pools.iter().map(|pool| pool.requests).sum::<u64>(), one.served());
        for pool in &one.pools {
            assert_eq!(pool.instances.iter().map(|one| one.requests).sum::<u64>(), pool.requests);
        }
        if let Some(resources) = &one.resources {
            assert_eq!(resources.hits + resources.loads, one.served());
        }
    }
}

#[test]
fn every_request_is_counted_once_whatever_becomes_of_it() {
    let more = "max_sessions = 3\n\
        [[rule]]\nname = \"no\"\nmatch = 'Resource(\"r1\")'\naction = \"deny\"\nstatus = 410\n\
        [[rule]]\nname = \"some\"\nmatch = 'Resource(\"r2\", \"r3\")'\npool = \"p\"\n";
    let plans = vec![plan("fewest-sessions", &[("a", 100), ("b", 100)], more)];
    let workload = Workload { resources: 10, rate: 10.0, ..Workload::default() };
    let settings = settings(Workload { stay: Duration::from_millis(1), ..workload.clone() });
    let report = run(plans, &settings, 20_000);
    assert_conserved(&report);
    let one = &report.configurations[0];
    assert!(one.outcomes["deny 410"] > 5_000, "{one:?}");
    assert_eq!(one.rules[0].requests, one.outcomes["deny 410"]);
    // Both instances have three sessions at most where many stay.
    let plans = vec![plan("fewest-sessions", &[("b", 100), ("a", 100)], "max_sessions = 3\n")];
    let report = run(plans, &super::tests::settings(workload), 2_000);
    assert_conserved(&report);
    let one = &report.configurations[0];
    assert_eq!(one.pools[0].instances[1].peak_sessions, 3);
    assert!(!one.outcomes.contains_key("unavailable: 503"), "only one of them is limited");
}

#[test]
fn a_pool_that_is_full_answers_as_its_configuration_says() {
    let plans = vec![plan("fewest-sessions", &[("a", 100)], "max_sessions = 5\n")];
    let report = run(plans, &settings(Workload::default()), 5_000);
    assert_conserved(&report);
    let one = &report.configurations[0];
    assert_eq!((one.peak_sessions, one.resources.is_none()), (5, true));
    assert_eq!(one.outcomes["unavailable: 503"] + one.served(), 5_000);
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_one_does_not() {
    let plans = || {
        ["fewest-sessions", "consistent-hash"]
            .map(|method| plan(method, &[("a", 100), ("b", 50), ("c", 100)], ""))
            .into()
    };
    let workload = Workload { resources: 50, users: 20, sessions: 30, ..Workload::default() };
    let mut settings = settings(workload);
    let first = run(plans(), &settings, 5_000);
    assert_eq!(first, run(plans(), &settings, 5_000));
    assert_conserved(&first);
    settings.seed = 8;
    assert_ne!(first.configurations, run(plans(), &settings, 5_000).configurations);
}

#[test]
fn an_instance_of_weight_200_in_a_hundred_receives_twice_what_each_other_receives() {
    let names: Vec<String> = (0..100).map(|number| format!("i{number}")).collect();
    let weight = |number| if number == 17 { 200 } else { 100 };
    let instances: Vec<_> =
        names.iter().enumerate().map(|(number, name)| (name.as_str(), weight(number))).collect();
    // By sessions, where nobody leaves; in turns, whoever leaves.
    for (method, stay) in [("fewest-sessions", 1_000_000_000), ("round-robin", 1)] {
        let workload = Workload { stay: Duration::from_secs(stay), ..Workload::default() };
        let report = run(vec![plan(method, &instances, "")], &settings(workload), 50_500);
        let pool = &report.configurations[0].pools[0];
        for (number, one) in pool.instances.iter().enumerate() {
            let twice = if number == 17 { 1_000 } else { 500 };
            assert!(one.requests.abs_diff(twice) <= 1 && one.expected == twice as f64, "{method}: {one:?}");
        }
        assert!(pool.imbalance.max_over_mean < 1.005, "{method}: {:?}", pool.imbalance);
    }
}

#[test]
fn affinity_to_resources_loads_each_once_and_its_lack_loads_them_everywhere() {
    let with = plan("fewest-sessions", &[("a", 100), ("b", 100), ("c", 100), ("d", 100)], "");
    let text = "[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n[[pool]]\nname = \"p\"\n".to_owned()
        + &["a", "b", "c", "d"]
            .map(|name| {
                format!(
                    "[[pool.instance]]\nname = \"{name}\"\naddress = \"10.1.0.1:{}\"\n",
                    name.as_bytes()[0]
                )
            })
            .concat();
    let without = ("without.toml".to_owned(), config::parse("without.toml", &text).unwrap());
    let workload = Workload { resources: 100, ..Workload::default() };
    let report = run(vec![with, without], &settings(workload), 20_000);
    assert_conserved(&report);
    let [with, without] = &report.configurations[..] else { panic!() };
    let (with, without) = (with.resources.as_ref().unwrap(), without.resources.as_ref().unwrap());
    assert_eq!((with.loaded_twice, with.most_copies), (0, 1));
    assert!(without.most_copies == 4 && without.loads > 2 * with.loads, "{with:?} {without:?}");
    assert_eq!(with.opened, without.opened, "both were given the same requests");
}

#[test]
fn load_makes_a_second_instance_open_what_the_first_is_too_busy_for() {
    let plans = || vec![plan("fewest-sessions", &[("a", 100), ("b", 100), ("c", 100)], "")];
    let workload =
        Workload { resources: 1, rate: 10.0, stay: Duration::from_secs(10), ..Workload::default() };
    let mut settings = settings(workload);
    let calm = run(plans(), &settings, 5_000);
    let requests = |report: &Report| {
        let mut list =
            report.configurations[0].pools[0].instances.iter().map(|one| one.requests).collect::<Vec<_>>();
        list.sort_unstable();
        list
    };
    assert_eq!(requests(&calm), [0, 0, 5_000], "all on the one that has it loaded");
    // About 100 sessions of 1 % each: strained from 50 on.
    settings.load_model =
        Some(LoadModel { cpu_per_session: 1.0, memory_per_resource: 0.0, every: Duration::from_secs(2) });
    let busy = run(plans(), &settings, 5_000);
    assert_conserved(&busy);
    assert!(requests(&busy)[1] > 500, "{:?}", requests(&busy));
    // Ten times as much exhausts them all, and nobody serves.
    settings.load_model =
        Some(LoadModel { cpu_per_session: 10.0, memory_per_resource: 0.0, every: Duration::from_secs(1) });
    let exhausted = run(plans(), &settings, 5_000);
    assert_conserved(&exhausted);
    assert!(exhausted.configurations[0].outcomes["unavailable: 503"] > 500);
}

#[test]
fn requests_that_would_not_carry_what_is_simulated_are_refused_before_it_begins() {
    let text = "[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n\
        resource = { path_regex = '^/map/([^/]+)' }\n[[pool]]\nname = \"p\"\n\
        [[pool.instance]]\nname = \"a\"\naddress = \"10.1.0.1:80\"\n";
    let plans = || vec![("t.toml".to_owned(), config::parse("t.toml", text).unwrap())];
    let mut settings = settings(Workload { resources: 3, ..Workload::default() });
    let refused = simulate(plans(), &settings, Requests::Synthetic { count: 1 }, |_| true).unwrap_err();
    assert!(matches!(refused, SimulateError::ResourceNotFound { .. }), "{refused}");
    settings.workload.target = "/map/{resource}/view".to_owned();
    let report = run(plans(), &settings, 100);
    assert_eq!(report.configurations[0].resources.as_ref().unwrap().opened, 3);
    settings.listener = Some("none".to_owned());
    let refused = simulate(plans(), &settings, Requests::Synthetic { count: 1 }, |_| true).unwrap_err();
    assert!(refused.to_string().contains("it has web"), "{refused}");
}

fn log(text: &[u8]) -> Requests<'_> {
    Requests::Log { reader: Box::new(text), count: u64::MAX, own_pace: false }
}

#[test]
fn lines_of_a_log_that_are_no_requests_are_counted_and_the_rest_is_simulated() {
    let mut text = Vec::new();
    for number in 0..30 {
        text.extend_from_slice(
            format!("10.2.0.{number} - - [30/Nov/2026:10:00:{number:02} +0000] \"GET /a/{number} HTTP/1.1\" 200 5 \"-\" \"curl\"\n")
                .as_bytes(),
        );
        match number {
            10 => text.extend_from_slice(b"what is this?\n\xff\xfe [x]\n"),
            20 => text.extend([vec![b'x'; 200_000], b"\n".to_vec()].concat()),
            _ => {}
        }
    }
    text.extend_from_slice(b"10.2.0.1 - - [30/Nov/2026:10:01:00 +0000] \"GET /%zz HTTP/1.1\" 400 5");
    let plans = vec![plan("fewest-sessions", &[("a", 100), ("b", 100)], "")];
    let report = simulate(plans, &settings(Workload::default()), log(&text), |_| true).unwrap();
    assert_conserved(&report);
    assert_eq!((report.requests, report.seconds), (31, 60.0));
    let one = &report.configurations[0];
    assert_eq!((one.served(), one.outcomes[tally::BAD_PATH]), (30, 1));
    let read = report.log.unwrap();
    assert_eq!((read.lines, read.first_malformed), (34, Some(12)));
    let malformed: Vec<_> = read.malformed.iter().map(|(why, count)| (&why[..6], *count)).collect();
    assert_eq!(malformed, [("longer", 1), ("no tim", 1), ("not UT", 1)]);
}

#[test]
fn an_interrupted_simulation_reports_what_there_was() {
    let plans = vec![plan("fewest-sessions", &[("a", 100)], "")];
    let requests = Requests::Synthetic { count: 1_000_000 };
    let go_on = |progress: Progress| progress.requests < 3_000;
    let report = simulate(plans, &settings(Workload::default()), requests, go_on).unwrap();
    assert_conserved(&report);
    assert_eq!((report.requests, report.interrupted), (3_000, true));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// The n-th resource is asked for in proportion to 1 / nˢ.
    #[test]
    fn resources_follow_zipfs_law(seed: u64, resources in 2u64..200, exponent in 0.0f64..2.0) {
        const DRAWN: u32 = 20_000;
        let workload = Workload { resources, exponent, ..Workload::default() };
        let mut synthetic = Synthetic::new(workload, seed);
        let mut counts = vec![0u32; resources as usize + 1];
        for _ in 0..DRAWN {
            let name = synthetic.next().resource.unwrap();
            counts[name[1..].parse::<usize>().unwrap()] += 1;
        }
        let weight = |rank: u64| (rank as f64).powf(-exponent);
        let whole: f64 = (1..=resources).map(weight).sum();
        prop_assert_eq!(counts[0], 0);
        for rank in 1..=resources {
            let expected = f64::from(DRAWN) * weight(rank) / whole;
            // Six standard deviations of a count, and a little for the smallest.
            let distance = (f64::from(counts[rank as usize]) - expected).abs();
            prop_assert!(distance < 6.0 * expected.sqrt() + 6.0, "rank {}: {} not {}", rank, counts[rank as usize], expected);
        }
    }

    /// Arrivals keep their order, their rate and their clients' network.
    #[test]
    fn arrivals_are_in_order_and_from_the_network(seed: u64, bits in 0u8..=32) {
        let clients: ipnet::IpNet = ipnet::Ipv4Net::new([10, 77, 3, 9].into(), bits).unwrap().into();
        let mut synthetic = Synthetic::new(Workload { clients, rate: 100.0, ..Workload::default() }, seed);
        let mut last = Duration::ZERO;
        for _ in 0..2_000 {
            let arrival = synthetic.next();
            prop_assert!(arrival.at >= last && clients.contains(&arrival.client));
            last = arrival.at;
        }
        prop_assert!((15.0..25.0).contains(&last.as_secs_f64()));
    }
}
