//! Stories about the decision core, told through its public interface alone.

mod allocation;
mod concurrency;
mod decisions;
mod documentation;
mod explain;
mod expressions;
mod functions;
mod index;
mod load;
mod paths;
mod support;
mod unavailable;
