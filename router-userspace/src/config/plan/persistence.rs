//! A rule's cookie, and the keys that seal it.
//!
//! A key file holds one key a line, each 64 hexadecimal digits; empty lines and lines that begin with `#` are skipped. The first key
//! seals, and all of them open.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use data_encoding::HEXLOWER_PERMISSIVE;

use super::super::file;
use super::super::reader::Report;
use super::super::report::Problem;
use crate::core::persistence::{KEY_LEN, Keys, Persistence, SameSite};

/// Room for dozens of keys with comments.
const MAX_BYTES: u64 = 16 * 1024;

pub(super) fn plan(persistence: &file::Persistence, report: &Report<'_>) -> Option<Arc<Persistence>> {
    if let Some(same_site) = &persistence.same_site
        && same_site.value == SameSite::None
        && !persistence.secure.value
    {
        let message = "browsers refuse a cookie with same_site = \"none\" that is not secure";
        let help = "add secure = true, or choose \"lax\" or \"strict\"";
        report.add(Problem::at(same_site.span.clone(), message).help(help));
    }
    let path = &persistence.path;
    if !path.value.starts_with('/') {
        let message = format!("a cookie's path begins with '/', not as {:?} does", path.value);
        report.add(Problem::at(path.span.clone(), message));
    }
    let keys = persistence.key_file.as_ref().map(|file| {
        let keys = read(&file.value);
        if let Err(problem) = &keys {
            let message = format!("the key file {} {}", file.value.display(), problem.message);
            report.add(Problem::at(file.span.clone(), message).help(problem.help));
        }
        keys.ok()
    });
    Some(Arc::new(Persistence {
        cookie: persistence.cookie.as_ref()?.value.clone(),
        age: persistence.age.value,
        domain: persistence.domain.as_ref().map(|domain| domain.value.clone()),
        path: path.value.clone(),
        secure: persistence.secure.value,
        http_only: persistence.http_only.value,
        same_site: persistence.same_site.as_ref().map(|same_site| same_site.value),
        generation: persistence.generation.value,
        keys: keys??,
    }))
}

struct KeyProblem {
    message: String,
    help: &'static str,
}

const HOW_TO_MAKE: &str = "make one with: (umask 077; openssl rand -hex 32 > FILE)";

fn read(path: &Path) -> Result<Keys, KeyProblem> {
    let unreadable = |error: std::io::Error| KeyProblem {
        message: format!("cannot be read: {error}"),
        help: if error.kind() == std::io::ErrorKind::NotFound {
            HOW_TO_MAKE
        } else {
            "let the router's user read it, and nobody else"
        },
    };
    // A pipe could be waited for without end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(KeyProblem { message: "is not a regular file".to_owned(), help: HOW_TO_MAKE });
    }
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(unreadable)?;
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let decoded = HEXLOWER_PERMISSIVE.decode(line.as_bytes()).ok();
        // What is there instead may be half a secret: it is not shown.
        let key =
            decoded.and_then(|bytes| <[u8; KEY_LEN]>::try_from(bytes).ok()).ok_or_else(|| KeyProblem {
                message: format!("has no key of {} hexadecimal digits in line {number}", 2 * KEY_LEN),
                help: HOW_TO_MAKE,
            })?;
        keys.push(key);
    }
    Keys::new(&keys).ok_or_else(|| KeyProblem { message: "holds no key".to_owned(), help: HOW_TO_MAKE })
}
