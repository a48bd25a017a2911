//! Where session keys, users, groups and resources come from, listener by listener.

use super::super::file::File;
use super::super::reader::Report;
use super::super::report::Problem;
use super::unique::Unique;
use crate::core::identity::Identities;

pub(super) fn plan(file: &File, report: &Report<'_>) -> Identities {
    let mut names = Unique::new(report);
    for name in file.groups.iter().filter_map(|group| group.name.as_ref()) {
        names.see(name, |name| {
            (format!("two groups are named `{name}`"), "list all its users in one [[group]]".to_owned())
        });
    }
    for listener in &file.listeners {
        let spec = &listener.identity.spec;
        if let Some(place) = &listener.identity.user_resource
            && (spec.user.is_none() || spec.resource.is_none())
        {
            let message = "`user_resource` needs both a `user` and a `resource` of the listener";
            report.add(
                Problem::at(place.span.clone(), message).help("add them, or choose another session key"),
            );
        }
    }
    let listeners = file
        .listeners
        .iter()
        .filter_map(|listener| Some((listener.name.as_ref()?.value.clone(), listener.identity.spec.clone())));
    let members = file
        .groups
        .iter()
        .filter_map(|group| Some((group.name.as_ref()?.value.clone(), group.users.clone())));
    Identities::new(listeners.collect(), members)
}
