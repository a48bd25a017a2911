//! What XDP programs that are run by themselves know of interfaces, and what they count.

use std::cell::RefCell;

use anyhow::{Result, anyhow};
use aya::Ebpf;
use aya::maps::{Array, DevMap, MapData, PerCpuArray};
use router_common::abi::reason::XdpReason;
use router_common::abi::xdp::Interface;
use router_common::path::xdp::Interfaces;

/// The loopback interface, which is there on every host.
const LOOPBACK: u32 = 1;
/// More than tests have interfaces.
const KNOWN: usize = 32;

/// The maps of a loaded program.
pub struct XdpMaps {
    interfaces: RefCell<Array<MapData, [u32; 4]>>,
    /// Which interfaces send, as the map has it.
    sends: RefCell<[u32; KNOWN]>,
    _devices: DevMap<MapData>,
    frames: PerCpuArray<MapData, u64>,
}

impl std::fmt::Debug for XdpMaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpMaps").finish_non_exhaustive()
    }
}

impl XdpMaps {
    pub fn take(ebpf: &mut Ebpf) -> Result<Self> {
        let mut take = |name: &str| ebpf.take_map(name).ok_or_else(|| anyhow!("no map {name}"));
        let mut devices: DevMap<_> = take("XDP_DEVICES")?.try_into()?;
        for index in 0..KNOWN as u32 {
            // The loopback interface stands for all: nothing is really sent.
            devices.set(index, LOOPBACK, None, 0)?;
        }
        Ok(Self {
            interfaces: RefCell::new(take("XDP_INTERFACES")?.try_into()?),
            sends: RefCell::new([0; KNOWN]),
            _devices: devices,
            frames: take("XDP_FRAMES")?.try_into()?,
        })
    }

    /// These interfaces, and no others, send what XDP gives to them.
    pub fn hold(&self, known: &KnownInterfaces) -> Result<()> {
        for ((index, interface), held) in (0..).zip(&known.0).zip(self.sends.borrow_mut().iter_mut()) {
            let sends = interface.sends.get();
            if *held != sends {
                self.interfaces.borrow_mut().set(index, [0, 0, sends, 0], 0)?;
                *held = sends;
            }
        }
        Ok(())
    }

    /// Frames by what was done with them, in the order of its numbers.
    pub fn frames(&self) -> Result<Vec<u64>> {
        let sum = |reason: &XdpReason| Ok(self.frames.get(&(reason.index() as u32), 0)?.iter().sum());
        XdpReason::ALL.iter().map(sum).collect()
    }
}

/// Interfaces in plain memory, by their index.
#[derive(Clone, Debug)]
pub struct KnownInterfaces(Vec<Interface>);

impl KnownInterfaces {
    /// The first few, of which these send.
    pub fn sending(sends: impl Fn(u32) -> bool) -> Self {
        let interface = |index| {
            let interface = Interface::default();
            interface.sends.set(sends(index).into());
            interface
        };
        Self((0..KNOWN as u32).map(interface).collect())
    }
}

impl Interfaces for KnownInterfaces {
    fn interface(&self, index: u32) -> Option<&Interface> {
        self.0.get(index as usize)
    }
}
