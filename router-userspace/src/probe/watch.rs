//! Lets time pass for every instance: who must report and is silent, and averages that move by themselves.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::log::{self, Name};
use crate::core::table::RoutingTable;

/// How often. Silence is noticed so much later than it is complete.
const STEP: Duration = Duration::from_millis(250);

/// Watches the instances of whatever table is in force, for ever.
pub async fn watch(table: Arc<ArcSwap<RoutingTable>>) {
    let mut steps = interval(STEP);
    steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        steps.tick().await;
        let now = Instant::now().into_std();
        for (_, pool, instance) in table.load_full().instances() {
            let changes = instance.status.advance(&pool.load, pool.thresholds(instance), now);
            if changes != Default::default() {
                let name = Name { pool: pool.name.clone(), instance: instance.name.clone() };
                log::changes(&name, instance.address, changes);
            }
        }
    }
}
