//! What a rule opens ahead of users: unique resources, and a request that tells them apart.

use std::sync::Arc;

use super::super::file::File;
use super::super::preload::{self, NoField, Preload as Written};
use super::super::reader::Report;
use super::super::report::Problem;
use super::super::secret_file::{self, Unusable};
use super::unique::Unique;
use crate::core::preload::{Field, LoadRequest, Preload, Schedule};

/// A rule has at most so many resources: each is planned and shown by itself.
const MAX_RESOURCES: usize = 1_000;

const HOW_TO_MAKE: &str = "write one field a line, such as: Authorization: Bearer abc";

pub(super) fn plan(written: &Written, report: &Report<'_>) -> Option<Arc<Preload>> {
    let resources = written.resources.as_ref();
    if let Some(list) = resources {
        let mut names = Unique::new(report);
        for resource in &list.value {
            names
                .see(resource, |name| (format!("resource `{name}` is named twice"), "remove one".to_owned()));
        }
        if list.value.is_empty() || list.value.len() > MAX_RESOURCES {
            let message = format!("`resources` must name 1 to {MAX_RESOURCES}, not {}", list.value.len());
            report.add(Problem::at(list.span.clone(), message));
        }
    }
    if written.expect.value.is_empty() {
        let help = "leave it out for the default, [\"200-299\"]";
        report.add(Problem::at(written.expect.span.clone(), "`expect` is empty").help(help));
    }
    let shown = written.headers.iter().flat_map(|list| &list.value).map(|header| header.value.clone());
    let secret = match &written.headers_file {
        Some(file) => secret_file::read(file, ("headers file", HOW_TO_MAKE), report, fields),
        None => Some(Vec::new()),
    };
    let (method, path) = written.request.as_ref()?.value.clone();
    let request = LoadRequest {
        method,
        path,
        host: written.host.as_ref().map(|host| host.value.clone()),
        headers: shown
            .map(|field| (field, false))
            .chain(secret?.into_iter().map(|field| (field, true)))
            .map(|((name, value), secret)| Field { name, value, secret })
            .collect(),
    };
    if let (Some(list), Some(place)) = (resources, &written.request)
        && list.value.len() > 1
        && !request.names_resource()
    {
        let help = "write {resource} where its name belongs, in the path or in a header";
        report.add(
            Problem::at(place.span.clone(), "`request` is the same for each of the resources").help(help),
        );
    }
    let (from, to) = written.window.value;
    Some(Arc::new(Preload {
        resources: resources?.value.iter().map(|resource| resource.value.clone()).collect(),
        instances: written.instances.value,
        request,
        expect: written.expect.value.iter().map(|range| range.value.clone()).collect(),
        every: written.every.value,
        timeout: written.timeout.value,
        schedule: Schedule { days: written.days.value, from, to },
        retries: written.retries.value,
        retry_delay: written.retry_delay.value,
        load_on_exhausted: written.load_on_exhausted.value,
        update_exhausted: written.update_exhausted.value,
    }))
}

/// One field a line.
fn fields(lines: &mut dyn Iterator<Item = (usize, &str)>) -> Result<Vec<preload::Field>, Unusable> {
    let fields = lines.map(|(number, line)| {
        preload::field(line).map_err(|no| match no {
            NoField::Malformed => Unusable::new(format!("has no header field in line {number}"), HOW_TO_MAKE),
            NoField::Own(name) => Unusable::new(
                format!("sets {name} in line {number}, which the router writes itself"),
                preload::instead_of(&name),
            ),
        })
    });
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    if fields.is_empty() { Err(Unusable::new("holds no header field", HOW_TO_MAKE)) } else { Ok(fields) }
}

/// Marks of resources that nobody asks for help nobody.
pub(super) fn warn_of_unread_resources(file: &File, report: &Report<'_>) {
    if file.listeners.iter().any(|listener| listener.identity.spec.resource.is_some()) {
        return;
    }
    if let Some(preload) = file.rules.iter().find_map(|rule| rule.preload.as_ref()) {
        let message =
            "no listener finds resources in requests, so none is sent to where its resource is loaded";
        let help =
            "add `resource` to the listeners, such as resource = { path_regex = '^/analysis/([^/]+)' }";
        report.warn(Problem::at(preload.span.clone(), message).help(help));
    }
}
