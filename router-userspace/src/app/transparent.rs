//! What listeners with `source = "transparent"` need of this host: the kernel programs, and routing that delivers what those have marked.

use anyhow::{Context as _, Result, bail};

use crate::config::{ListenerPlan, Source};
use crate::flows::local_delivery;

/// Sees to it before such a listener serves anybody.
pub fn prepare(listeners: &[ListenerPlan], has_datapath: bool) -> Result<()> {
    let transparent =
        |listener: &&ListenerPlan| listener.source == Source::Transparent && !listener.protocol.is_layer4();
    for is_ipv4 in [true, false] {
        let mut of_family =
            listeners.iter().filter(transparent).filter(|one| one.address.is_ipv4() == is_ipv4);
        let Some(listener) = of_family.next() else { continue };
        if !has_datapath {
            bail!(
                "listener {} has source = \"transparent\", which needs the kernel data path",
                listener.name
            );
        }
        local_delivery::install(is_ipv4).with_context(|| {
            format!(
                "answers to the clients of listener {} cannot be delivered to this host (ip rule, table {})",
                listener.name,
                local_delivery::TABLE
            )
        })?;
    }
    Ok(())
}

/// Leaves the host as it was found.
pub fn end() {
    for is_ipv4 in [true, false] {
        local_delivery::remove(is_ipv4);
    }
}
