//! A user's client: curl on a host of the lab.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::lab::{Host, Lab};

/// One run of curl: bounded in time, and silent but for the reply.
#[derive(Debug)]
pub struct Curl {
    command: Command,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// 0 when no reply came.
    pub status: u16,
    /// Names in lower case; of a repeated field the last.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// curl's exit code: 0, or for example 7 when refused, 28 after a time-out, 52 when closed without a reply, 56 when reset.
    pub exit_code: i32,
}

impl Curl {
    /// curl on the client.
    pub fn new(lab: &Lab) -> Self {
        Self::on(lab, Host::Client)
    }

    pub fn on(lab: &Lab, host: Host) -> Self {
        let mut command = lab.command(host, "curl");
        command.args(["--silent", "--include", "--max-time", "60", "--noproxy", "*"]);
        command.env_clear();
        Self { command }
    }

    /// curl on the client for large bodies, which go from file to file.
    pub fn for_files(lab: &Lab) -> Self {
        Self::for_files_by(lab.command(Host::Client, "curl"))
    }

    /// The same by a command that starts curl elsewhere.
    pub fn for_files_by(mut command: Command) -> Self {
        command.args(["--silent", "--show-error", "--max-time", "120", "--noproxy", "*"]);
        command.args(["--write-out", "%{http_code}"]);
        command.env_clear();
        Self { command }
    }

    /// Stores the body of a reply in `file`. Returns the status; an error is what curl said.
    pub fn download(self, url: impl AsRef<OsStr>, file: &Path) -> Result<u16, String> {
        self.arg("--output").arg(file).transfer(url)
    }

    /// Sends `file` as the body of a PUT.
    pub fn upload(self, file: &Path, url: impl AsRef<OsStr>) -> Result<u16, String> {
        self.arg("--output").arg("/dev/null").arg("--upload-file").arg(file).transfer(url)
    }

    fn transfer(self, url: impl AsRef<OsStr>) -> Result<u16, String> {
        let output = self.arg(url).command.output().expect("curl starts");
        let text = String::from_utf8_lossy(&output.stdout);
        match text.trim().parse() {
            Ok(status) if output.status.success() => Ok(status),
            _ => Err(format!("{}: {text} {}", output.status, String::from_utf8_lossy(&output.stderr))),
        }
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub fn header(self, line: &str) -> Self {
        self.arg("--header").arg(line)
    }

    pub fn within(self, limit: Duration) -> Self {
        self.arg("--max-time").arg(limit.as_secs_f64().to_string())
    }

    pub fn get(self, url: impl AsRef<OsStr>) -> Reply {
        let output = self.arg(url).command.output().expect("curl starts");
        Reply::parse(&output.stdout, output.status.code().unwrap_or(-1))
    }
}

impl Reply {
    pub(crate) fn parse(mut received: &[u8], exit_code: i32) -> Self {
        let mut reply = Self { status: 0, headers: HashMap::new(), body: Vec::new(), exit_code };
        // Interim replies (100 Continue) come before the real one.
        while reply.status < 200 {
            let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") else { break };
            let head = String::from_utf8_lossy(&received[..end]).into_owned();
            received = &received[end + 4..];
            let mut lines = head.split("\r\n");
            let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
            reply.status = status.unwrap_or_else(|| panic!("curl printed no status line: {head:?}"));
            let fields = lines.filter_map(|line| line.split_once(':'));
            reply.headers =
                fields.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect();
        }
        reply.body = received.to_vec();
        reply
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The instance that answered, as the lab's nginx names itself.
    pub fn instance(&self) -> Option<&str> {
        self.headers.get("x-instance").map(String::as_str)
    }
}
