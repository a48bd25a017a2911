//! Composition root: the one place where everything meets; nothing uses it.
