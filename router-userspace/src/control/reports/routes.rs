//! The one path of the report listener.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use router_common::abi::reason::ReportReason;
use router_report::{MAX_BODY_BYTES, Report};

use super::super::protocol::ErrorBody;
use super::super::routes::{parse, within_time};
use super::{Refused, ReportState, Said, Taken};

pub(super) fn routes(state: Arc<ReportState>) -> Router {
    Router::new()
        .route("/v1/report", post(report))
        .fallback(elsewhere)
        .method_not_allowed_fallback(elsewhere)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn(within_time))
        .with_state(state)
}

async fn report(
    Shared(state): Shared<Arc<ReportState>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    answer(&state, take(&state, &headers, body))
}

async fn elsewhere(Shared(state): Shared<Arc<ReportState>>) -> Response {
    let help = "send POST /v1/report; metrics and status are elsewhere";
    answer(&state, Err(Refused::new(ReportReason::NotAReport, "there is nothing but reports here", help)))
}

fn take(
    state: &ReportState,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Taken, Refused> {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().split_at_checked(7))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "))
        .map(|(_, token)| token.trim_ascii())
        .ok_or_else(|| {
            let help = "send the header: Authorization: Bearer TOKEN";
            Refused::new(ReportReason::NoToken, "the report has no token", help)
        })?;
    let pools = state.tokens.pools(token);
    let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
    if pools.is_empty() {
        let help = "use a token from the token_file of the instance's pool";
        return Err(Refused::new(ReportReason::WrongToken, "the token is not one of any pool", help));
    }
    if body.as_ref().is_err_and(|rejection| rejection.status() == StatusCode::PAYLOAD_TOO_LARGE) {
        let error = format!("the report is longer than {MAX_BODY_BYTES} bytes");
        return Err(Refused::new(ReportReason::TooLarge, error, "send fewer loaded_resources"));
    }
    let sent: Report = parse(body)
        .map_err(|refusal| Refused::new(ReportReason::Malformed, refusal.body.error, refusal.body.help))?;
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let said = Said::check(sent, clock)?;
    state.intake.take(&pools, &said, Instant::now())
}

/// Counts and logs what is refused. Names of tokens never appear, and neither does what a stranger sent.
fn answer(state: &ReportState, result: Result<Taken, Refused>) -> Response {
    let Refused { reason, error, help } = match result {
        Ok(taken) => return Json(taken).into_response(),
        Err(refused) => refused,
    };
    state.counters.reports_refused.add(reason);
    tracing::debug!(reason = reason.name(), %error, "a report was refused");
    let status = match reason {
        ReportReason::NoToken | ReportReason::WrongToken => StatusCode::UNAUTHORIZED,
        ReportReason::NotAReport => StatusCode::NOT_FOUND,
        ReportReason::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ReportReason::UnknownInstance => StatusCode::NOT_FOUND,
        ReportReason::RegistrationConflict => StatusCode::CONFLICT,
        ReportReason::RegistryFull => StatusCode::TOO_MANY_REQUESTS,
        ReportReason::Malformed
        | ReportReason::OutOfRange
        | ReportReason::FutureClock
        | ReportReason::TooOld => StatusCode::BAD_REQUEST,
    };
    let mut answer = (status, Json(ErrorBody { error, help, problems: Vec::new() })).into_response();
    if status == StatusCode::UNAUTHORIZED {
        let challenge = axum::http::HeaderValue::from_static("Bearer");
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    answer
}
