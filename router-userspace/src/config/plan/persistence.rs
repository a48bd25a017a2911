//! A rule's cookie, and the keys that seal it.
//!
//! A key file holds one key a line, each 64 hexadecimal digits; empty lines and lines that begin with `#` are skipped. The first key
//! seals, and all of them open.

use std::sync::Arc;

use data_encoding::HEXLOWER_PERMISSIVE;

use super::super::file;
use super::super::reader::Report;
use super::super::report::Problem;
use super::super::secret_file::{self, Unusable};
use crate::core::persistence::{KEY_LEN, Keys, Persistence, SameSite};

const HOW_TO_MAKE: &str = "make one with: (umask 077; openssl rand -hex 32 > FILE)";

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
    let key_file = persistence.key_file.as_ref();
    let keys = key_file.map(|file| secret_file::read(file, ("key file", HOW_TO_MAKE), report, keys));
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

fn keys(lines: &mut dyn Iterator<Item = (usize, &str)>) -> Result<Keys, Unusable> {
    let key = |(number, line): (usize, &str)| {
        let decoded = HEXLOWER_PERMISSIVE.decode(line.as_bytes()).ok();
        decoded.and_then(|bytes| <[u8; KEY_LEN]>::try_from(bytes).ok()).ok_or_else(|| {
            let digits = 2 * KEY_LEN;
            Unusable::new(format!("has no key of {digits} hexadecimal digits in line {number}"), HOW_TO_MAKE)
        })
    };
    let keys = lines.map(key).collect::<Result<Vec<_>, _>>()?;
    Keys::new(&keys).ok_or_else(|| Unusable::new("holds no key", HOW_TO_MAKE))
}
