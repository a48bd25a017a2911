//! Composition root: the one place where everything meets; nothing uses it.

pub mod control;
pub mod heads;
