//! Keeps one task for each target, across changes of the routing table.

use std::collections::HashMap;

use tokio::task::AbortHandle;

use super::log::Name;

/// What a task looks after.
pub(super) trait Target {
    fn name(&self) -> &Name;
    /// Whether a task for `self` serves `other` as well.
    fn is_same(&self, other: &Self) -> bool;
}

/// A task, ended when this is dropped.
#[derive(Debug)]
struct Running<T> {
    target: T,
    task: AbortHandle,
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The running tasks, by their targets' names.
#[derive(Debug)]
pub(super) struct Tasks<T>(HashMap<Name, Running<T>>);

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Target> Tasks<T> {
    /// Runs exactly one task for each of `targets`. One that has not changed is not disturbed.
    pub fn replace(&mut self, targets: impl Iterator<Item = T>, start: impl Fn(&T) -> AbortHandle) {
        let mut next = HashMap::new();
        for target in targets {
            let name = target.name().clone();
            let task = match self.0.remove(&name) {
                Some(running) if running.target.is_same(&target) => running,
                _ => Running { task: start(&target), target },
            };
            next.insert(name, task);
        }
        self.0 = next;
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
