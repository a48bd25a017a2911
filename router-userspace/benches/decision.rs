//! What a decision costs: few and many rules, few and many instances, and the same without the index.
//!
//! `cargo bench --package router-userspace --bench decision`

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use router::config;
use router::core::decide::Attempt;
use router::core::request::{Header, HttpRequest, HttpVersion, Request};
use router::core::rules::Match;
use router::core::table::RoutingTable;

/// A site of many tenants: each has a host, and an area below it; the last rule is the one that holds.
fn table(rules: usize, instances: usize) -> RoutingTable {
    let mut text =
        String::from("[[listener]]\nname = \"web\"\naddress = \"10.0.1.1:80\"\n[[pool]]\nname = \"p\"\n");
    for number in 0..instances {
        let [high, low] = (number as u16).to_be_bytes();
        text += &format!("[[pool.instance]]\nname = \"i{number}\"\naddress = \"10.1.{high}.{low}:80\"\n");
    }
    for number in 0..rules {
        let condition = match number % 5 {
            0 => format!("Host(\"t{number}.example\")"),
            1 => format!("HostSuffix(\"d{number}.example\") && PathPrefix(\"/app\")"),
            2 => format!("PathPrefix(\"/app/t{number}/\") && (Method(\"GET\") || Method(\"HEAD\"))"),
            3 => format!("Header(\"X-Tenant\", \"t{number}\") || Cookie(\"tenant\", \"t{number}\")"),
            _ => {
                format!("Host(\"www.example\") && PathPrefix(\"/t{number}/\") && !ClientIP(\"10.9.0.0/16\")")
            }
        };
        text += &format!("[[rule]]\nname = \"r{number}\"\nmatch = '{condition}'\npool = \"p\"\n");
    }
    config::parse("bench.toml", &text).unwrap_or_else(|errors| panic!("{errors}")).table
}

/// A browser's request for the last rule of [`table`].
fn with_request<T>(rules: usize, see: impl FnOnce(&Request<'_>) -> T) -> T {
    let path = format!("/t{}/report", rules - 1);
    let headers = [
        ("Host", "www.example"),
        ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
        ("Accept-Language", "en-GB,en;q=0.5"),
        ("Accept-Encoding", "gzip, deflate, br, zstd"),
        ("Connection", "keep-alive"),
        ("Cookie", "tenant=unknown; theme=dark; JSESSIONID=6F2B9C0D1E5A4F7788"),
        ("Upgrade-Insecure-Requests", "1"),
        ("Sec-Fetch-Mode", "navigate"),
    ];
    let headers = headers.map(|(name, value)| Header { name, value: value.as_bytes() });
    let client: IpAddr = "10.1.2.3".parse().expect("an address");
    see(&Request {
        listener: "web",
        client,
        tls: None,
        http: Some(HttpRequest {
            version: HttpVersion::Http11,
            method: "GET",
            host: Some("www.example"),
            raw_path: &path,
            path: &path,
            query: Some("from=2024&to=2025"),
            headers: &headers,
        }),
    })
}

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision");
    for rules in [10, 10_000] {
        for instances in [4, 100, 1_000] {
            let table = Arc::new(table(rules, instances));
            with_request(rules, |request| {
                let attempt = Attempt::first(Instant::now());
                let decided = table.decide(request, &attempt);
                assert_eq!(table.rule_name(decided.rule), format!("r{}", rules - 1));
                drop(decided);
                let name = BenchmarkId::new(format!("{rules} rules"), format!("{instances} instances"));
                group.bench_function(name, |bencher| {
                    bencher.iter(|| drop(black_box(table.decide(black_box(request), &attempt))));
                });
            });
        }
    }
    group.finish();
}

/// What the index saves: every rule in turn until one holds.
fn without_index(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("walk over all rules");
    for rules in [10, 10_000] {
        let table = table(rules, 4);
        let conditions: Vec<&Match> = table.rules().iter().map(|rule| &rule.condition).collect();
        with_request(rules, |request| {
            group.bench_function(format!("{rules} rules"), |bencher| {
                bencher
                    .iter(|| conditions.iter().position(|condition| condition.matches(black_box(request))));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decisions, without_index);
criterion_main!(benches);
