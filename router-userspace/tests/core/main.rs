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
mod memory;
mod methods;
mod paths;
mod preference;
mod preloads;
mod support;
mod unavailable;
mod waiting;
