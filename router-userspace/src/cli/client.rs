//! Asking the daemon: one request over its Unix socket, and one sentence if that fails.

use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::Exit;
use crate::control::protocol::{ErrorBody, Problem, VERSION, VERSION_HEADER};

/// From connecting to the last byte of the answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Why there is no answer, or not the one that was asked for.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error(
        "there is no control socket {0}: is routerd running, and is this its control_socket? (see --socket)"
    )]
    NoSocket(PathBuf),
    #[error(
        "nobody answers on the control socket {0}: routerd has ended without removing it; start it again"
    )]
    NobodyAnswers(PathBuf),
    #[error("this user may not use the control socket {path}: {remedy}")]
    Permission { path: PathBuf, remedy: String },
    #[error("the daemon on {0} did not answer within {1} seconds; see its log")]
    TimedOut(PathBuf, u64),
    #[error("{0} is not the control socket of a routerd; see --socket")]
    NotTheDaemon(PathBuf),
    #[error(
        "the daemon on {path} speaks control version {theirs} and this routerctl {VERSION}: \
         use the routerctl that was installed with it"
    )]
    Version { path: PathBuf, theirs: String },
    #[error("{error}; {help}{}", listed(problems))]
    Refused { status: StatusCode, error: String, help: String, problems: Vec<Problem> },
    #[error("the connection to {path} failed: {source}; try again, and see the daemon's log")]
    Broken { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
}

impl ClientError {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Refused { status: StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT, .. } => {
                Exit::Negative
            }
            Self::Refused { status, .. } if status.is_client_error() => Exit::Usage,
            _ => Exit::NoAnswer,
        }
    }
}

/// Each problem on a line of its own, as compilers write them.
fn listed(problems: &[Problem]) -> String {
    let line = |problem: &Problem| {
        let Problem { file, message, help, line, column } = problem;
        let place = match (line, column) {
            (Some(line), Some(column)) => format!("{file}:{line}:{column}"),
            _ => file.clone(),
        };
        let help = help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        format!("\n{place}: {message}{help}")
    };
    problems.iter().map(line).collect()
}

/// The daemon's words, and what they mean.
pub(super) struct Answer<T> {
    pub(super) value: T,
    body: Bytes,
}

impl<T> Answer<T> {
    /// Prints the body as it came, so that fields of a newer daemon are not lost. False if JSON was not asked for.
    pub(super) fn print_json(&self, wanted: bool, out: &mut dyn Write) -> io::Result<bool> {
        if wanted {
            out.write_all(&self.body)?;
            out.write_all(b"\n")?;
        }
        Ok(wanted)
    }
}

pub(super) struct Client {
    socket: PathBuf,
}

impl Client {
    pub(super) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, ClientError> {
        self.ask(Method::GET, path, Bytes::new())
    }

    pub(super) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer<T>, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.broken(error))?;
        self.ask(Method::POST, path, body.into())
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer<T>, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| self.broken(error))?;
        let asked = runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, self.exchange(method, path, body)).await })
            .map_err(|_| ClientError::TimedOut(self.socket.clone(), TIMEOUT.as_secs()))?;
        let (status, version, body) = asked?;
        match version {
            None => return Err(ClientError::NotTheDaemon(self.socket.clone())),
            Some(theirs) if theirs != VERSION.to_string() => {
                return Err(ClientError::Version { path: self.socket.clone(), theirs });
            }
            Some(_) => {}
        }
        if !status.is_success() {
            let ErrorBody { error, help, problems } =
                serde_json::from_slice(&body).unwrap_or_else(|_| ErrorBody {
                    error: format!("the daemon answered {status}"),
                    help: "see its log".to_owned(),
                    problems: Vec::new(),
                });
            return Err(ClientError::Refused { status, error, help, problems });
        }
        let value = serde_json::from_slice(&body).map_err(|error| self.broken(error))?;
        Ok(Answer { value, body })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Option<String>, Bytes), ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.cannot_connect(error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.no_http(e))?;
        let driver = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "routerd")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| self.broken(error))?;
        let response = sender.send_request(request).await.map_err(|error| self.no_http(error))?;
        let status = response.status();
        let version = response.headers().get(VERSION_HEADER).and_then(|value| value.to_str().ok());
        let version = version.map(str::to_owned);
        let body = response.into_body().collect().await.map_err(|error| self.broken(error))?.to_bytes();
        driver.abort();
        Ok((status, version, body))
    }

    fn cannot_connect(&self, error: io::Error) -> ClientError {
        let path = self.socket.clone();
        match error.kind() {
            io::ErrorKind::NotFound => ClientError::NoSocket(path),
            io::ErrorKind::ConnectionRefused if is_socket(&path) => ClientError::NobodyAnswers(path),
            io::ErrorKind::ConnectionRefused => ClientError::NotTheDaemon(path),
            io::ErrorKind::PermissionDenied => ClientError::Permission { remedy: remedy(&path), path },
            _ => self.broken(error),
        }
    }

    fn no_http(&self, error: hyper::Error) -> ClientError {
        if error.is_parse() { ClientError::NotTheDaemon(self.socket.clone()) } else { self.broken(error) }
    }

    fn broken(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Broken { path: self.socket.clone(), source: source.into() }
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// What a user without access can do: the socket's mode says whether a group has it.
fn remedy(path: &Path) -> String {
    const ROOT: &str = "run routerctl as root, or set control_group in the daemon's configuration";
    let Ok(metadata) = std::fs::metadata(path) else { return ROOT.to_owned() };
    if metadata.permissions().mode() & 0o060 != 0o060 {
        return ROOT.to_owned();
    }
    let gid = metadata.gid();
    let group = nix::unistd::Group::from_gid(gid.into()).ok().flatten();
    let group = group.map_or_else(|| gid.to_string(), |group| group.name);
    format!("join its group (`usermod -aG {group} USER`, then log in again), or run routerctl as root")
}
