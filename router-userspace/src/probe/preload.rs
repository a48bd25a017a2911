//! Sends the requests of preloads: asks the core what is due, and tells it how each went.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Zoned;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{debug, info, warn};

use super::exchange::{self, Answer, Stop};
use super::jitter::random_numbers;
use super::origin::Origin;
use crate::core::health::Failure;
use crate::core::preload::{Event, LoadFailure, Planner, Task, Verdict};
use crate::core::table::RoutingTable;

/// How often the plan is looked at. A request begins, and the death of an instance is noticed, so much later.
const STEP: Duration = Duration::from_millis(250);
/// How much of an answer is read; whatever is longer has shown that the resource is open.
const MAX_BODY: u64 = 64 << 20;

type Done = (Task, Result<u16, LoadFailure>);

/// Opens resources ahead of users as the rules of whatever table is in force say, for ever.
pub async fn preload(planner: Arc<Mutex<Planner>>, table: Arc<ArcSwap<RoutingTable>>, origin: Origin) {
    let plan = || planner.lock().unwrap_or_else(PoisonError::into_inner);
    let origin = Arc::new(origin);
    let mut random = random_numbers();
    let mut running = JoinSet::<Done>::new();
    let mut steps = interval(STEP);
    steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = steps.tick() => {
                let now = Instant::now().into_std();
                let (tasks, events) = plan().step(&table.load_full(), now, &Zoned::now(), &mut random);
                events.iter().for_each(tell);
                for task in tasks {
                    running.spawn(load(task, Arc::clone(&origin)));
                }
            }
            Some(done) = running.join_next() => {
                // It neither panics nor is aborted.
                let Ok((task, result)) = done else { continue };
                let now = Instant::now().into_std();
                let verdict = plan().finish(&table.load(), task.ticket, result.clone(), now, random());
                tell_result(&task, &result, verdict);
            }
        }
    }
}

/// Sends one request and reads its answer, within the time that it has.
async fn load(task: Task, origin: Arc<Origin>) -> Done {
    let result = match timeout(task.preload.timeout, attempt(&task, &origin)).await {
        Ok(Ok(status)) => task.preload.judge(status),
        Ok(Err(Stop::Failed(failure))) => Err(LoadFailure::Instance(failure)),
        Ok(Err(Stop::NotTried(error))) => Err(LoadFailure::NotSent(error.to_string())),
        Err(_) => Err(LoadFailure::Instance(Failure::TimedOut)),
    };
    (task, result)
}

async fn attempt(task: &Task, origin: &Origin) -> Result<u16, Stop> {
    let request = &task.preload.request;
    let mut stream = exchange::connect(task.address, origin).await?;
    exchange::announce(&mut stream, task.proxy_protocol).await?;
    let head = request.head(&task.resource, task.address);
    let answer = exchange::ask(&mut stream, &head).await.map_err(Stop::Failed)?;
    if !request.is_head() {
        read_body(&mut stream, answer).await.map_err(Stop::Failed)?;
    }
    Ok(answer.status)
}

/// Reads the rest of the answer and discards it: what an instance does to produce it is the point of asking.
async fn read_body(stream: &mut TcpStream, answer: Answer) -> Result<(), Failure> {
    let mut buffer = vec![0; 16 * 1024];
    let mut read = answer.read;
    while read < answer.length.unwrap_or(u64::MAX).min(MAX_BODY) {
        match stream.read(&mut buffer).await {
            Ok(0) if answer.length.is_none() => break,
            Ok(0) | Err(_) => return Err(Failure::Closed),
            Ok(length) => read += length as u64,
        }
    }
    Ok(())
}

fn tell(event: &Event) {
    match event {
        Event::InstanceGone { rule, resource, instance } => {
            info!(%rule, %resource, %instance, "instance went away, and with it a preload: another one is picked");
        }
        Event::NoInstance { rule, resource, has } => {
            warn!(%rule, %resource, has, "no further instance can be picked for this preload");
        }
    }
}

fn tell_result(task: &Task, result: &Result<u16, LoadFailure>, verdict: Verdict) {
    let Task { rule, resource, instance, .. } = task;
    let reason = result.as_ref().err().map(LoadFailure::to_string).unwrap_or_default();
    match verdict {
        Verdict::Loaded { first: true } => info!(%rule, %resource, %instance, "preloaded"),
        Verdict::Loaded { first: false } => debug!(%rule, %resource, %instance, "preload refreshed"),
        Verdict::Retry { after } => {
            warn!(%rule, %resource, %instance, %reason, ?after, "preload failed; it is tried again");
        }
        Verdict::Stopped { begin_anew } => {
            warn!(%rule, %resource, %instance, %reason, ?begin_anew, "preload stopped: every try failed");
        }
        Verdict::GivenUp => {
            debug!(%rule, %resource, %instance, %reason, "preload ended after its instance had gone");
        }
    }
}
