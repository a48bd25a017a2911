//! The buffer into which the kernel programs copy packets that somebody wants to see.

use aya::Ebpf;
use aya::maps::{Map, MapData, RingBuf};
use router_common::abi::capture::{CaptureBudget, Sample, Wanted};

use super::{KernelError, map_error, mapped, of, take};
use crate::flows::mapped::Mapped;

/// What is wanted, and what has come.
pub struct Samples {
    /// By the number of a [`PacketReason`](router_common::abi::reason::PacketReason).
    pub wanted: Mapped<Wanted>,
    budget: Mapped<CaptureBudget>,
    ring: RingBuf<MapData>,
}

impl std::fmt::Debug for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Samples").finish_non_exhaustive()
    }
}

impl Samples {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        let ring = match take(ebpf, "CAPTURED")? {
            map @ Map::RingBuf(_) => RingBuf::try_from(map).map_err(map_error)?,
            _ => unreachable!("it is one"),
        };
        Ok(Self {
            wanted: mapped(of(ebpf, "CAPTURE_WANTED"))?,
            budget: mapped(of(ebpf, "CAPTURE_BUDGET"))?,
            ring,
        })
    }

    pub fn budget(&self) -> &CaptureBudget {
        &self.budget[0]
    }

    /// The oldest sample that has not been read. What lies behind its captured bytes is 0.
    pub fn oldest(&mut self) -> Option<Sample> {
        let item = self.ring.next()?;
        let bytes: &[u8; size_of::<Sample>()] = (*item).try_into().ok()?;
        // SAFETY: a sample is made of integers only, without padding, and the bytes are as many.
        let mut sample: Sample = unsafe { std::mem::transmute_copy(bytes) };
        let captured = (sample.captured as usize).min(sample.bytes.len());
        sample.captured = captured as u32;
        sample.bytes[captured..].fill(0);
        Some(sample)
    }
}
