//! Active checks: keys that belong to another kind of check, and certificates that are read from a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use router_report::format_duration;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::super::file::{Check, CheckKind};
use super::super::reader::{Placed, Report};
use super::super::report::{Problem, Span};
use crate::core::health::{self, CheckSpec, TlsCheck};

/// Some thousands of certificates.
const MAX_CA_FILE: u64 = 8 * 1024 * 1024;

/// The authorities that this host trusts, where Debian, Alpine and Arch keep them.
const SYSTEM_CA_FILE: &str = "/etc/ssl/certs/ca-certificates.crt";

pub(super) fn spec(check: &Check, report: &Report<'_>) -> Option<CheckSpec> {
    if check.timeout.value > check.interval.value {
        // Whichever is written is the one to change; a default has no place of its own.
        let at = if check.timeout.written { &check.timeout.span } else { &check.interval.span };
        let (timeout, interval) =
            (format_duration(check.timeout.value), format_duration(check.interval.value));
        let message =
            format!("a check's `timeout` ({timeout}) must not be longer than its `interval` ({interval})");
        report.add(Problem::at(at.clone(), message).help("or checks of one instance would overlap"));
    }
    let kind = check.kind.as_ref()?.value;
    misplaced(check, kind, report);
    let kind = match kind {
        CheckKind::Tcp => health::CheckKind::Tcp,
        CheckKind::Http => {
            if check.expect.written && check.expect.value.is_empty() {
                let message = "`expect` is empty, so no answer could pass the check";
                report.add(
                    Problem::at(check.expect.span.clone(), message).help("leave it out to expect 200-399"),
                );
            }
            health::CheckKind::Http {
                path: check.path.as_ref().map_or_else(|| "/".to_owned(), |path| path.value.clone()),
                host: check.host.as_ref().map(|host| host.value.clone()),
                expect: check.expect.value.iter().map(|range| range.value.clone()).collect(),
            }
        }
        CheckKind::Tls => health::CheckKind::Tls(TlsCheck {
            server_name: check.server_name.as_ref().map(|name| name.value.clone()),
            authorities: authorities(check, report)?,
            alpn: check
                .alpn
                .iter()
                .flat_map(|list| &list.value)
                .map(|protocol| protocol.value.clone())
                .collect(),
        }),
    };
    Some(CheckSpec {
        kind,
        interval: check.interval.value,
        timeout: check.timeout.value,
        rise: check.rise.value,
        fall: check.fall.value,
        initial: check.initial.value,
    })
}

/// Reports keys that another kind of check has.
fn misplaced(check: &Check, kind: CheckKind, report: &Report<'_>) {
    fn at<T>(value: Option<&Placed<T>>) -> Option<&Span> {
        value.map(|value| &value.span)
    }
    let keys = [
        ("path", CheckKind::Http, at(check.path.as_ref())),
        ("host", CheckKind::Http, at(check.host.as_ref())),
        ("expect", CheckKind::Http, at(Some(&check.expect).filter(|expect| expect.written))),
        ("server_name", CheckKind::Tls, at(check.server_name.as_ref())),
        ("verify", CheckKind::Tls, at(check.verify.as_ref())),
        ("ca_file", CheckKind::Tls, at(check.ca_file.as_ref())),
        ("alpn", CheckKind::Tls, at(check.alpn.as_ref())),
    ];
    for (key, of, span) in keys {
        if let Some(span) = span.filter(|_| of != kind) {
            let message = format!("`{key}` has no meaning for a check of type {:?}", kind.name());
            let help = format!("remove it, or set type = {:?}", of.name());
            report.add(Problem::at(span.clone(), message).help(help));
        }
    }
}

/// What certificates are verified with: `Some(None)` if they are not. `None` if that is said wrongly.
fn authorities(check: &Check, report: &Report<'_>) -> Option<Option<Arc<[Vec<u8>]>>> {
    match (&check.verify, &check.ca_file) {
        (None, None) => Some(None),
        (Some(verify), None) if verify.value => {
            let message = "`verify = true` needs a `ca_file`";
            let help =
                format!("name the certificates to trust; those of this host are usually in {SYSTEM_CA_FILE}");
            report.add(Problem::at(verify.span.clone(), message).help(help));
            None
        }
        (Some(_), None) => Some(None),
        (Some(verify), Some(file)) if !verify.value => {
            let message = "`ca_file` has no meaning with `verify = false`";
            let problem = Problem::at(file.span.clone(), message).help("remove one of the two");
            report.add(problem.earlier(verify.span.clone(), "certificates are not verified"));
            None
        }
        (_, Some(file)) => match read(&file.value) {
            Ok(certificates) => {
                report.has_read(&file.value, &certificates.concat());
                Some(Some(certificates))
            }
            Err(problem) => {
                let message = format!("the certificates in {} {problem}", file.value.display());
                let help = "give a file of certificates in PEM form: -----BEGIN CERTIFICATE-----";
                report.add(Problem::at(file.span.clone(), message).help(help));
                None
            }
        },
    }
}

#[derive(Debug, thiserror::Error)]
enum CaFileProblem {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("cannot be read: it is not a regular file")]
    NotAFile,
    #[error("are not in PEM form")]
    NotPem,
    #[error("are none")]
    Empty,
    #[error("cannot be used: number {number} {error}")]
    Unusable { number: usize, error: rustls::Error },
}

fn read(path: &Path) -> Result<Arc<[Vec<u8>]>, CaFileProblem> {
    // A pipe could be waited for without end.
    if !std::fs::metadata(path)?.is_file() {
        return Err(CaFileProblem::NotAFile);
    }
    let mut text = Vec::new();
    File::open(path)?.take(MAX_CA_FILE).read_to_end(&mut text)?;
    let mut trusted = RootCertStore::empty();
    let mut certificates = Vec::new();
    for (number, certificate) in (1..).zip(CertificateDer::pem_slice_iter(&text)) {
        let certificate = certificate.map_err(|_| CaFileProblem::NotPem)?;
        certificates.push(certificate.to_vec());
        trusted.add(certificate).map_err(|error| CaFileProblem::Unusable { number, error })?;
    }
    if certificates.is_empty() {
        return Err(CaFileProblem::Empty);
    }
    Ok(certificates.into())
}
