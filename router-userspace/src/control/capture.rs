//! Captures of packets that are not carried on (`routerctl capture`): `begin or come back → wait for packets → tell them`.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::http::StatusCode;
use data_encoding::BASE64;
use router_common::abi::reason::PacketReason;
use tokio::time::{Instant, sleep};

use super::flows::unknown;
use super::protocol::{CaptureAnswer, CaptureRequest, CapturedPacket, MAX_CAPTURE_WAIT_MS};
use super::routes::Refusal;
use super::state::State;
use super::whereabouts::summary;
use crate::flows::capture::{CaptureError, Captured, Captures, Catch, Wish};

/// How often it is looked whether something has come.
const LOOK: Duration = Duration::from_millis(20);

pub async fn ask(state: Arc<State>, request: CaptureRequest) -> Result<CaptureAnswer, Refusal> {
    let Some(captures) = state.captures.as_deref() else {
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            format!("no packet passes a kernel program: {}", state.datapath),
            "without the kernel data path every packet is the stack's; capture with tcpdump",
        ));
    };
    if request.wait_ms > MAX_CAPTURE_WAIT_MS {
        return Err(Refusal::bad_request(
            format!("wait_ms is {}", request.wait_ms),
            format!("wait at most {MAX_CAPTURE_WAIT_MS} ms, and ask again"),
        ));
    }
    let capture = match request.capture {
        Some(capture) if request.reasons.is_empty() => capture,
        Some(_) => {
            return Err(Refusal::bad_request(
                "a capture's reasons cannot be changed",
                "begin another one: name no capture",
            ));
        }
        None => captures.begin(&wish(&request.reasons)?).map_err(refusal)?,
    };
    let catch = wait(captures, capture, Duration::from_millis(request.wait_ms)).await?;
    let last = if request.end { captures.end(capture).map_err(refusal)? } else { Catch::default() };
    let packets = catch.packets.iter().chain(&last.packets).map(told).collect();
    Ok(CaptureAnswer { capture, packets, missed: catch.missed + last.missed })
}

/// What has come, as soon as something has.
async fn wait(captures: &dyn Captures, capture: u64, limit: Duration) -> Result<Catch, Refusal> {
    let until = Instant::now() + limit;
    let mut missed = 0;
    loop {
        let catch = captures.visit(capture).map_err(refusal)?;
        missed += catch.missed;
        if !catch.packets.is_empty() || Instant::now() >= until {
            return Ok(Catch { missed, ..catch });
        }
        sleep(LOOK).await;
    }
}

fn wish(reasons: &[String]) -> Result<Wish, Refusal> {
    if reasons.is_empty() {
        return Ok(Wish::Dropped);
    }
    let known = |name: &String| {
        PacketReason::ALL.iter().find(|reason| reason.name() == name).copied().ok_or_else(|| {
            let names: Vec<_> = PacketReason::ALL.iter().map(|reason| reason.name()).collect();
            unknown("packet reason", name, &names)
        })
    };
    reasons.iter().map(known).collect::<Result<_, _>>().map(Wish::Reasons)
}

fn told(captured: &Captured) -> CapturedPacket {
    let since = captured.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    CapturedPacket {
        time_unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        reason: captured.reason.name().to_owned(),
        dropped: captured.dropped,
        interface: captured.interface.clone(),
        packet: summary(&captured.frame, captured.length),
        frame: BASE64.encode(&captured.frame),
    }
}

fn refusal(error: CaptureError) -> Refusal {
    let help = match error {
        CaptureError::Busy => "wait for it to end; one that nobody comes back to ends within three seconds",
        CaptureError::Ended => "begin another one: name no capture",
    };
    Refusal::new(StatusCode::CONFLICT, error.to_string(), help)
}
