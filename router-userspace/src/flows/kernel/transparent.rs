//! Tuples of packets to sockets that bear a client's address.

use aya::Ebpf;
use router_common::abi::key::FlowKey;

use super::by_family::ByFamily;
use super::{KernelError, lock};

/// What the kernel programs deliver to this host's sockets.
pub struct TransparentTuples(ByFamily<u32>);

impl std::fmt::Debug for TransparentTuples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransparentTuples").finish_non_exhaustive()
    }
}

impl TransparentTuples {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        ByFamily::take(ebpf, ["TRANSPARENT", "TRANSPARENT6"]).map(Self)
    }

    /// False if there is no room.
    pub fn insert(&self, key: FlowKey) -> bool {
        self.0.insert(key, 0, 0).is_ok()
    }

    pub fn remove(&self, key: FlowKey) {
        self.0.remove_if(key, |_| true);
    }

    /// Every tuple, in no particular order.
    pub fn all(&self) -> Vec<FlowKey> {
        let v4 = lock(&self.0.v4).keys().flatten().map(FlowKey::V4).collect::<Vec<_>>();
        let v6 = lock(&self.0.v6).keys().flatten().map(FlowKey::V6).collect::<Vec<_>>();
        [v4, v6].concat()
    }
}
