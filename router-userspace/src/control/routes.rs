//! The paths of the control socket, and the errors that every path answers with.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::{Bytes, HttpBody as _};
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, Request, State as Shared};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::protocol::{
    Applied, CaptureAnswer, ChangeRequest, Changes, DropRequest, ErrorBody, ExplainRequest, Explanation,
    FlowQuery, Flows, Instance, MAX_BODY_BYTES, Pool, Preload, Reasons, ReloadRequest, Rule, SessionQuery,
    Sessions, Status, VERSION, VERSION_HEADER, WhereAnswer, WriteRequest,
};
use super::state::State;
use super::{capture, configuration, explain, flows, metrics, preloads, sessions, view, whereabouts};

/// From the end of the head until the answer is ready; a body that trickles in longer is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Everything: what the Unix socket serves.
pub fn control(state: Arc<State>) -> Router {
    let routes = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/pools", get(pools))
        .route("/v1/instances", get(instances))
        .route("/v1/rules", get(rules))
        .route("/v1/preloads", get(list_preloads))
        .route("/v1/flows", get(list_flows))
        .route("/v1/sessions", get(list_sessions))
        .route("/v1/explain", post(explain_request))
        .route("/v1/where", post(where_packets_go))
        .route("/v1/reasons", get(reasons))
        .route("/v1/capture", post(capture_packets))
        .route("/v1/reload", post(reload))
        .route("/v1/changes", get(changes).post(change))
        .route("/v1/changes/drop", post(drop_changes))
        .route("/v1/changes/write", post(write_changes))
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(healthz));
    finish(routes, state)
}

/// What may be seen over TCP without any permission.
pub fn admin(state: Arc<State>) -> Router {
    finish(Router::new().route("/metrics", get(metrics_text)).route("/healthz", get(healthz)), state)
}

fn finish(routes: Router<Arc<State>>, state: Arc<State>) -> Router {
    routes
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn(bound_and_sign))
        .with_state(state)
}

/// An answer of 400 or above.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub body: ErrorBody,
}

impl Refusal {
    pub fn new(status: StatusCode, error: impl Into<String>, help: impl Into<String>) -> Self {
        Self { status, body: ErrorBody { error: error.into(), help: help.into(), problems: Vec::new() } }
    }

    /// The request was understood and cannot be answered as it stands.
    pub fn bad_request(error: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, help)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

type Answer<T> = Result<Json<T>, Refusal>;

async fn status(Shared(state): Shared<Arc<State>>) -> Json<Status> {
    Json(view::status(&state))
}

async fn pools(Shared(state): Shared<Arc<State>>) -> Json<Vec<Pool>> {
    Json(view::pools(&state.table.load()))
}

async fn instances(Shared(state): Shared<Arc<State>>) -> Json<Vec<Instance>> {
    Json(view::instances(&state))
}

async fn rules(Shared(state): Shared<Arc<State>>) -> Json<Vec<Rule>> {
    Json(view::rules(&state))
}

async fn list_preloads(Shared(state): Shared<Arc<State>>) -> Json<Vec<Preload>> {
    Json(preloads::list(&state))
}

async fn list_flows(
    Shared(state): Shared<Arc<State>>,
    query: Result<Query<FlowQuery>, QueryRejection>,
) -> Answer<Flows> {
    let Query(query) = query.map_err(|rejection| {
        Refusal::bad_request(
            rejection.body_text(),
            "the parameters are instance, client, listener, count=1 and limit, each at most once",
        )
    })?;
    flows::list(&state, &query).map(Json)
}

async fn list_sessions(
    Shared(state): Shared<Arc<State>>,
    query: Result<Query<SessionQuery>, QueryRejection>,
) -> Answer<Sessions> {
    let Query(query) = query.map_err(|rejection| {
        Refusal::bad_request(rejection.body_text(), "the only parameter is limit, a number")
    })?;
    Ok(Json(sessions::list(&state, &query)))
}

async fn explain_request(
    Shared(state): Shared<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Explanation> {
    let request: ExplainRequest = parse(body)?;
    explain::ask(state, request).await.map(Json)
}

async fn where_packets_go(
    Shared(state): Shared<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<WhereAnswer> {
    whereabouts::ask(state, parse(body)?).await.map(Json)
}

async fn capture_packets(
    Shared(state): Shared<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<CaptureAnswer> {
    capture::ask(state, parse_or_default(body)?).await.map(Json)
}

async fn reload(Shared(state): Shared<Arc<State>>, body: Result<Bytes, BytesRejection>) -> Answer<Applied> {
    let request: ReloadRequest = parse_or_default(body)?;
    configuration::ask(state, move |configurator| configurator.reload(&request)).await.map(Json)
}

async fn changes(Shared(state): Shared<Arc<State>>) -> Answer<Changes> {
    configuration::ask(state, |configurator| Ok(configurator.changes())).await.map(Json)
}

async fn change(Shared(state): Shared<Arc<State>>, body: Result<Bytes, BytesRejection>) -> Answer<Applied> {
    let request: ChangeRequest = parse(body)?;
    configuration::ask(state, move |configurator| configurator.change(&request)).await.map(Json)
}

async fn drop_changes(
    Shared(state): Shared<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Applied> {
    let request: DropRequest = parse(body)?;
    configuration::ask(state, move |configurator| configurator.drop_changes(&request)).await.map(Json)
}

async fn write_changes(
    Shared(state): Shared<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Changes> {
    let request: WriteRequest = parse_or_default(body)?;
    configuration::ask(state, move |configurator| configurator.write_changes(&request)).await.map(Json)
}

async fn reasons(Shared(state): Shared<Arc<State>>) -> Json<Reasons> {
    Json(view::reasons(&state))
}

async fn metrics_text(Shared(state): Shared<Arc<State>>) -> Response {
    match metrics::text(&state) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the metrics could not be written: {error}"),
            "please report this",
        )
        .into_response(),
    }
}

/// The daemon runs and its control thread answers; whether pools can serve is for `/v1/status` to say.
async fn healthz() -> &'static str {
    "ok\n"
}

async fn unknown_path(uri: Uri) -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        format!("there is no {} here", uri.path()),
        "the paths are listed under \"Control socket\" in docs/OPERATIONS.md; GET /v1/status is one",
    )
}

async fn wrong_method(method: Method, uri: Uri) -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{} does not take {method}", uri.path()),
        "see the Allow header of this answer",
    )
}

/// Reads JSON whatever the content type says: `curl -d` sends another one than it means.
pub(super) fn parse<T: serde::de::DeserializeOwned>(
    body: Result<Bytes, BytesRejection>,
) -> Result<T, Refusal> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        status => Refusal::new(status, rejection.body_text(), "send the whole body"),
    })?;
    serde_json::from_slice(&body).map_err(|error| {
        let help = match error.classify() {
            serde_json::error::Category::Data => "correct the field at that place",
            _ => "send one JSON object",
        };
        Refusal::bad_request(format!("the body is not a valid request: {error}"), help)
    })
}

/// The same, where no body asks for nothing special.
fn parse_or_default<T: serde::de::DeserializeOwned + Default>(
    body: Result<Bytes, BytesRejection>,
) -> Result<T, Refusal> {
    if body.as_ref().is_ok_and(Bytes::is_empty) { Ok(T::default()) } else { parse(body) }
}

fn too_large() -> Refusal {
    let error = format!("the body is longer than {MAX_BODY_BYTES} bytes");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error, "send less")
}

/// Gives every request its bounds, and every answer the version of the protocol.
async fn bound_and_sign(request: Request, next: Next) -> Response {
    let announced = request.body().size_hint().lower();
    let mut answer = if announced > MAX_BODY_BYTES as u64 {
        too_large().into_response()
    } else {
        within_time(request, next).await
    };
    answer.headers_mut().insert(HeaderName::from_static(VERSION_HEADER), HeaderValue::from(VERSION));
    answer
}

pub(super) async fn within_time(request: Request, next: Next) -> Response {
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, next.run(request)).await;
    answer.unwrap_or_else(|_| {
        let refusal = Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive in time",
            "send it without pause",
        );
        ([(header::CONNECTION, "close")], refusal).into_response()
    })
}
