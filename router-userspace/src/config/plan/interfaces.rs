//! Interfaces that have a setting of their own.

use std::collections::HashMap;

use crate::config::file::Datapath;
use crate::config::reader::Report;
use crate::config::report::{Problem, Span};
use crate::config::settings::Interfaces;

/// Each is named once, and is one that the data path has.
pub(super) fn check(datapath: &Datapath, report: &Report<'_>) {
    let mut earlier: HashMap<&str, Span> = HashMap::new();
    for name in datapath.interface.iter().filter_map(|interface| interface.name.as_ref()) {
        if let Some(before) = earlier.insert(&name.value, name.span.clone()) {
            let message = format!("interface {} has two tables", name.value);
            report
                .add(Problem::at(name.span.clone(), message).earlier(before, "the first").help("remove one"));
        }
        if let Interfaces::Named(names) = &datapath.interfaces.value
            && !names.contains(&name.value)
        {
            let message = format!("the data path does not have interface {}", name.value);
            report.add(
                Problem::at(name.span.clone(), message).help("add it to `interfaces`, or remove this table"),
            );
        }
    }
}
