//! Preloads over real sockets.

use std::sync::{Mutex, PoisonError};

use arc_swap::ArcSwap;
use jiff::Zoned;

use super::*;
use crate::core::counters::Count;
use crate::core::pool::PoolId;
use crate::core::preload::{
    LoadFailure, LoadRequest, PlaceState, Planner, Preload, PreloadView, Schedule, Wanted,
};
use crate::core::rules::compile;
use crate::core::table::{Action, Overrides, Rule};
use crate::probe::preload;

const PATIENCE: Duration = Duration::from_secs(20);

fn opening() -> Preload {
    Preload {
        resources: vec!["a b".to_owned()],
        instances: Wanted::Number(1),
        request: LoadRequest {
            method: "GET".to_owned(),
            path: "/open/{resource}".to_owned(),
            host: None,
            headers: Vec::new(),
        },
        expect: vec![200..=299],
        every: Duration::from_secs(3_600),
        timeout: Duration::from_millis(500),
        schedule: Schedule::ALWAYS,
        retries: 0,
        retry_delay: Duration::from_millis(10),
        load_on_exhausted: false,
        update_exhausted: true,
    }
}

/// The planner at work for one rule over instances at these addresses.
struct Running {
    planner: Arc<Mutex<Planner>>,
    table: Arc<ArcSwap<RoutingTable>>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    fn start(preloaded: Preload, addresses: &[SocketAddr]) -> Self {
        let named = addresses.iter().zip(["one", "two", "three"]);
        let instances = named.map(|(&address, name)| Instance::new(name, address, None)).collect();
        let pool = Pool { name: "p".to_owned(), instances, ..Pool::default() };
        let rule = Rule {
            name: "r".to_owned(),
            enabled: true,
            condition: compile("Any()").unwrap(),
            action: Action::Pool(PoolId(0)),
            overrides: Overrides::default(),
            persistence: None,
            preload: Some(Arc::new(preloaded)),
            hits: Arc::<Count>::default(),
        };
        let table = RoutingTable::new(vec![rule], DefaultRule::default(), vec![pool], None).unwrap();
        let (planner, table) = (Arc::<Mutex<Planner>>::default(), Arc::new(ArcSwap::from_pointee(table)));
        let work = preload(Arc::clone(&planner), Arc::clone(&table), Origin::default());
        Self { planner, table, task: tokio::spawn(work).abort_handle() }
    }

    /// The only row, once the latest request has ended in this state.
    async fn becomes(&self, state: PlaceState) -> PreloadView {
        let row = || {
            let planner = self.planner.lock().unwrap_or_else(PoisonError::into_inner);
            let mut rows = planner.view(Instant::now().into_std(), &Zoned::now());
            rows.pop().filter(|row| row.state == state)
        };
        let ended = async {
            loop {
                if let Some(row) = row() {
                    return row;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, ended).await.unwrap_or_else(|_| panic!("never {state:?}"))
    }

    async fn fails(preloaded: Preload, address: SocketAddr) -> LoadFailure {
        let running = Self::start(preloaded, &[address]);
        let row = running.becomes(PlaceState::Stopped).await;
        row.last.expect("it has run").result.expect_err("it failed")
    }
}

#[tokio::test]
async fn the_request_is_sent_and_the_whole_answer_read_before_the_resource_counts_as_loaded() {
    let (sent, seen) = tokio::sync::oneshot::channel();
    let sent = Mutex::new(Some(sent));
    let (address, _server) = serve(move |mut stream, request| {
        let _ = sent.lock().unwrap().take().expect("one request").send(request);
        async move {
            let _ = stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 200000\r\n\r\n").await;
            let _ = stream.write_all(&[b'x'; 200_000]).await;
            // Not closed by the server: the length says where the answer ends.
            sleep(PATIENCE).await;
        }
    })
    .await;
    let running = Running::start(opening(), &[address]);
    let row = running.becomes(PlaceState::Loaded).await;
    assert_eq!(row.last.unwrap().result, Ok(201));
    let request = String::from_utf8(seen.await.unwrap()).unwrap();
    assert!(request.starts_with("GET /open/a%20b HTTP/1.1\r\n"), "{request}");
    let table = running.table.load();
    let (.., instance) = table.instances().next().unwrap();
    assert!(table.memory().resources.holders("a b").contains(instance.status.sessions()));
    assert_eq!(instance.status.sessions().live(), 0, "the session of the request has ended");
}

#[tokio::test]
async fn each_way_to_fail_has_its_reason() {
    let instance = |failure| LoadFailure::Instance(failure);
    for (answer, wanted) in [
        (&b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"[..], Failure::Status(503)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", Failure::Closed),
        (b"220 mail.example ESMTP\r\n\r\n", Failure::Malformed),
        (b"", Failure::Closed),
    ] {
        assert_eq!(Running::fails(opening(), server(answer).await).await, instance(wanted));
    }
    let (silent, _server) = serve(|stream, _| async move {
        sleep(PATIENCE).await;
        drop(stream);
    })
    .await;
    assert_eq!(Running::fails(opening(), silent).await, instance(Failure::TimedOut));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(Running::fails(opening(), closed).await, instance(Failure::Refused));
}

#[tokio::test]
async fn when_its_instance_goes_the_resource_is_opened_on_another() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let addresses = [server(answer).await, server(answer).await];
    let running = Running::start(opening(), &addresses);
    let first = running.becomes(PlaceState::Loaded).await.instance.unwrap();
    let table = running.table.load_full();
    let (.., instance) = table.instances().find(|(.., one)| one.name == first).unwrap();
    instance.status.set_admin(AdminState::Maintenance);
    let moved = async {
        while running.becomes(PlaceState::Loaded).await.instance.as_ref() == Some(&first) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, moved).await.expect("another one is picked");
}
