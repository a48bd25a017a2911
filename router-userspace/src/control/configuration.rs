//! Reloading and run-time changes over the control socket: from request to answer, and the words for what is refused.

use std::sync::Arc;

use axum::http::StatusCode;

use super::protocol::{
    Applied, ChangeRequest, Changes, Configuration, DropRequest, ReloadRequest, WriteRequest, located,
};
use super::routes::Refusal;
use super::state::State;
use crate::config::Refused;

/// Changes the configuration that the daemon runs. Each call is atomic, and they exclude each other.
pub trait Configurator: Send + Sync {
    fn reload(&self, request: &ReloadRequest) -> Result<Applied, Refused>;
    fn change(&self, request: &ChangeRequest) -> Result<Applied, Refused>;
    fn drop_changes(&self, request: &DropRequest) -> Result<Applied, Refused>;
    fn write_changes(&self, request: &WriteRequest) -> Result<Changes, Refused>;
    fn changes(&self) -> Changes;
    fn status(&self) -> Configuration;
}

/// Runs `work` where it may read files and take its time.
pub async fn ask<T: Send + 'static>(
    state: Arc<State>,
    work: impl FnOnce(&dyn Configurator) -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(move || work(state.configurator.as_ref())).await;
    match done {
        Ok(done) => done.map_err(refusal),
        Err(error) => Err(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the change could not be made: {error}"),
            "see the daemon's log, and please report this",
        )),
    }
}

fn refusal(refused: Refused) -> Refusal {
    let error = refused.to_string();
    let (status, help) = match &refused {
        Refused::Invalid(problems) => {
            let (file, count) = (problems.name(), problems.len());
            let plural = if count == 1 { "" } else { "s" };
            let mut refusal = Refusal::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                format!("{file} is not valid: {count} error{plural}"),
                "nothing has changed; correct the file and reload again",
            );
            refusal.body.problems = located(problems);
            return refusal;
        }
        Refused::DoesNotApply { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "nothing has changed"),
        Refused::Revision { .. } => (
            StatusCode::CONFLICT,
            "nothing has changed; look at the changes and the new revision, then try again",
        ),
        Refused::NoSuchChange(_) => {
            (StatusCode::UNPROCESSABLE_ENTITY, "`routerctl changes` lists the changes with their numbers")
        }
        Refused::TooMany => {
            (StatusCode::CONFLICT, "write them back into the file (`routerctl changes write`), or drop some")
        }
        Refused::Empty => (StatusCode::BAD_REQUEST, "give at least one change"),
        Refused::ChangedOnDisk(_) => (
            StatusCode::CONFLICT,
            "nothing has been written; reload first (`routerctl reload`), then write again",
        ),
        Refused::NotWritten { .. } => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "let the daemon's user write there; changes need state_dir, and writing back needs the file's folder",
        ),
        Refused::NotInstalled(_) => (StatusCode::CONFLICT, "nothing has changed"),
    };
    Refusal::new(status, error, help)
}
