//! Active checks: a task for each instance whose pool has a `check`, and what it sees goes to the instance's status.
//!
//! The route: [`Prober::install`] starts and stops tasks → `check` looks at an instance once → the core's health
//! machine judges → a change of reachability is counted there and logged here. The proxy is not involved: it marks instances
//! through the same status.

mod check;
mod origin;
mod prober;

#[cfg(test)]
mod tests;

pub use origin::Origin;
pub use prober::Prober;
