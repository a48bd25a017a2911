//! What a rule opens ahead of users: unique resources, and a request that tells them apart.

use std::sync::Arc;

use super::super::file::File;
use super::super::preload::Preload as Written;
use super::super::reader::Report;
use super::super::report::Problem;
use super::unique::Unique;
use crate::core::preload::{LoadRequest, Preload, Schedule};

/// A rule has at most so many resources: each is planned and shown by itself.
const MAX_RESOURCES: usize = 1_000;

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
    let headers = written.headers.iter().flat_map(|list| &list.value);
    let (method, path) = written.request.as_ref()?.value.clone();
    let request = LoadRequest {
        method,
        path,
        host: written.host.as_ref().map(|host| host.value.clone()),
        headers: headers.map(|header| header.value.clone()).collect(),
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
