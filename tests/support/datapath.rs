//! The loaded kernel programs by themselves: tables to fill, and frames to run through (BPF_PROG_TEST_RUN). Nothing is attached unless asked for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use aya::maps::{Array, HashMap, MapData, PerCpuArray, PerCpuValues};
use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{SchedClassifier, TcAttachType, TestRun, TestRunOptions, TestRunResult, Xdp};
use aya::{Ebpf, EbpfLoader};
use router::flows::kernel::OBJECT;
use router_common::abi::flow::Flow;
use router_common::abi::key::{FlowKey, FlowKeyV4, FlowKeyV6, FlowRef};
use router_common::abi::next_hop::NextHop;
use router_common::abi::reason::PacketReason;
use router_common::path::fragment::{Datagram, DatagramKey};
use router_common::path::memory::MemoryFlows;

use crate::lab::PinDirectory;
use crate::xdp_maps::XdpMaps;

pub const TC_ACT_UNSPEC: i32 = -1;
pub const TC_ACT_SHOT: i32 = 2;
pub const TC_ACT_REDIRECT: i32 = 7;

pub const XDP_DROP: i32 = 1;
pub const XDP_PASS: i32 = 2;
pub const XDP_REDIRECT: i32 = 4;

/// The longest frame that fits into a page beside what the kernel keeps there.
pub const LONGEST_FRAME: usize = 3_500;

/// Whether BPF_PROG_TEST_RUN takes this frame: it wants what is called IP to have a header.
pub fn runs(frame: &[u8]) -> bool {
    let shortest = match frame.get(12..14) {
        Some([0x08, 0x00]) => 14 + 20,
        Some([0x86, 0xdd]) => 14 + 40,
        _ => 14 + 1,
    };
    (shortest..=LONGEST_FRAME).contains(&frame.len())
}

type FlowBytes = [u8; size_of::<Flow>()];
type NextHopBytes = [u8; size_of::<NextHop>()];

/// What became of a frame.
#[derive(Debug)]
pub struct Ran {
    /// `TC_ACT_*`.
    pub action: i32,
    pub frame: Vec<u8>,
    /// Of one round, on average.
    pub duration: Duration,
}

/// The programs with maps of their own.
pub struct Datapath {
    keys: RefCell<HashMap<MapData, FlowKeyV4, FlowRef>>,
    keys6: RefCell<HashMap<MapData, FlowKeyV6, FlowRef>>,
    syn_options: RefCell<HashMap<MapData, FlowKeyV4, u32>>,
    syn_options6: RefCell<HashMap<MapData, FlowKeyV6, u32>>,
    flows: RefCell<Array<MapData, FlowBytes>>,
    next_hops: RefCell<Array<MapData, NextHopBytes>>,
    packets: PerCpuArray<MapData, u64>,
    answer_budget: RefCell<PerCpuArray<MapData, [u32; 2]>>,
    datagrams: RefCell<HashMap<MapData, [u8; size_of::<DatagramKey>()], [u32; 2]>>,
    pub xdp: XdpMaps,
    ebpf: Ebpf,
    _pins: PinDirectory,
}

impl std::fmt::Debug for Datapath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datapath").field("pins", &self._pins).finish_non_exhaustive()
    }
}

impl Datapath {
    pub fn load() -> Result<Self> {
        let pins = PinDirectory::new("test")?;
        let mut ebpf = EbpfLoader::new()
            .default_map_pin_directory(pins.path())
            .load(OBJECT)
            .context("cannot create the maps of the kernel programs")?;
        for name in ["router_ingress", "router_egress"] {
            let program: &mut SchedClassifier =
                ebpf.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?;
            program.load().with_context(|| format!("the verifier refuses {name}"))?;
        }
        load_xdp(&mut ebpf, "router_xdp")?;
        let xdp = XdpMaps::take(&mut ebpf)?;
        let mut take = |name: &str| ebpf.take_map(name).ok_or_else(|| anyhow!("no map {name}"));
        Ok(Self {
            keys: RefCell::new(take("KEYS")?.try_into()?),
            keys6: RefCell::new(take("KEYS6")?.try_into()?),
            syn_options: RefCell::new(take("SYN_OPTIONS")?.try_into()?),
            syn_options6: RefCell::new(take("SYN_OPTIONS6")?.try_into()?),
            flows: RefCell::new(take("FLOWS")?.try_into()?),
            next_hops: RefCell::new(take("NEXT_HOPS")?.try_into()?),
            packets: take("PACKETS")?.try_into()?,
            datagrams: RefCell::new(take("DATAGRAMS")?.try_into()?),
            answer_budget: RefCell::new(take("ANSWER_BUDGET")?.try_into()?),
            xdp,
            ebpf,
            _pins: pins,
        })
    }

    /// Makes the maps hold what `table` holds, and lets senders be told of an MTU as if none had been.
    pub fn hold(&self, table: &MemoryFlows) -> Result<()> {
        for key in self.keys()? {
            match key {
                FlowKey::V4(key) => self.keys.borrow_mut().remove(&key)?,
                FlowKey::V6(key) => self.keys6.borrow_mut().remove(&key)?,
            }
        }
        for (key, value) in &*table.keys.borrow() {
            match key {
                FlowKey::V4(key) => self.keys.borrow_mut().insert(key, value, 0)?,
                FlowKey::V6(key) => self.keys6.borrow_mut().insert(key, value, 0)?,
            }
        }
        for (slot, flow) in table.flows.iter().enumerate() {
            // SAFETY: `Flow` is made of integers only, without padding.
            let bytes: FlowBytes = unsafe { std::mem::transmute_copy(flow) };
            self.flows.borrow_mut().set(slot as u32, bytes, 0)?;
        }
        for (index, hop) in table.next_hops.iter().enumerate() {
            // SAFETY: as above.
            let bytes: NextHopBytes = unsafe { std::mem::transmute_copy(hop) };
            self.next_hops.borrow_mut().set(index as u32, bytes, 0)?;
        }
        let known: Vec<_> = self.datagrams.borrow().keys().collect::<Result<_, _>>()?;
        for key in known {
            self.datagrams.borrow_mut().remove(&key)?;
        }
        for (key, Datagram { flow, seen }) in &*table.datagrams.borrow() {
            self.datagrams.borrow_mut().insert(bytes_of_key(key), [*flow, *seen], 0)?;
        }
        let mut budget = self.answer_budget.borrow_mut();
        let full: Vec<_> = budget.get(&0, 0)?.iter().map(|_| [0; 2]).collect();
        budget.set(0, PerCpuValues::try_from(full)?, 0)?;
        Ok(())
    }

    /// The keys that are there.
    pub fn keys(&self) -> Result<Vec<FlowKey>> {
        let keys: Vec<FlowKeyV4> = self.keys.borrow().keys().collect::<Result<_, _>>()?;
        let keys6: Vec<FlowKeyV6> = self.keys6.borrow().keys().collect::<Result<_, _>>()?;
        Ok(keys.into_iter().map(FlowKey::V4).chain(keys6.into_iter().map(FlowKey::V6)).collect())
    }

    /// The datagrams of which first fragments were forwarded, with their flows.
    pub fn datagrams(&self) -> Result<BTreeMap<Vec<u8>, u32>> {
        let known = self.datagrams.borrow();
        known
            .iter()
            .map(|entry| entry.map(|(key, [flow, _])| (key.to_vec(), flow)).map_err(Into::into))
            .collect()
    }

    pub fn flow(&self, slot: u32) -> Result<Flow> {
        let bytes = self.flows.borrow().get(&slot, 0)?;
        // SAFETY: every bit pattern is a flow.
        Ok(unsafe { std::mem::transmute_copy(&bytes) })
    }

    /// Names the options to erase from SYNs of this tuple.
    pub fn erase_syn_options(&self, key: FlowKey, options: u32) -> Result<()> {
        match key {
            FlowKey::V4(key) => self.syn_options.borrow_mut().insert(key, options, 0)?,
            FlowKey::V6(key) => self.syn_options6.borrow_mut().insert(key, options, 0)?,
        }
        Ok(())
    }

    /// Packets by reason, in the order of its numbers.
    pub fn packets(&self) -> Result<Vec<u64>> {
        let sum = |reason: &PacketReason| {
            let cpus = self.packets.get(&(reason.index() as u32), 0)?;
            Ok(cpus.iter().sum())
        };
        PacketReason::ALL.iter().map(sum).collect()
    }

    /// Attaches the ingress program to an interface in the calling thread's namespace, for as long as this lives.
    pub fn attach_ingress(&mut self, interface: &str) -> Result<()> {
        let program: &mut SchedClassifier =
            self.ebpf.program_mut("router_ingress").context("the program was loaded")?.try_into()?;
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        program.attach_with_options(interface, TcAttachType::Ingress, options)?;
        Ok(())
    }

    /// A frame arrives.
    pub fn ingress(&self, frame: &[u8]) -> Result<Ran> {
        self.run("router_ingress", frame, 1)
    }

    /// A frame arrives at an interface with XDP.
    pub fn xdp(&self, frame: &[u8]) -> Result<Ran> {
        run_xdp(&self.ebpf, "router_xdp", frame, 1)
    }

    /// A frame leaves.
    pub fn egress(&self, frame: &[u8]) -> Result<Ran> {
        self.run("router_egress", frame, 1)
    }

    /// Sends the frame through again as it came out, `rounds` times in all.
    pub fn ingress_again_and_again(&self, frame: &[u8], rounds: u32) -> Result<Ran> {
        self.run("router_ingress", frame, rounds)
    }

    /// A frame arrives whose network card has summed up the whole packet (CHECKSUM_COMPLETE). Whether that sum is still right afterwards; `None` where
    /// the kernel cannot tell (before 6.16).
    pub fn ingress_keeps_the_card_s_sum(&self, frame: &[u8]) -> Result<Option<bool>> {
        const BPF_PROG_TEST_RUN: libc::c_long = 10;
        const BPF_F_TEST_SKB_CHECKSUM_COMPLETE: u32 = 1 << 2;
        let program: &SchedClassifier =
            self.ebpf.program("router_ingress").context("the program was loaded")?.try_into()?;
        let mut out = vec![0; frame.len() + 64];
        let attributes = TestRunAttributes {
            program: program.fd()?.as_fd().as_raw_fd() as u32,
            data_size_in: frame.len() as u32,
            data_size_out: out.len() as u32,
            data_in: frame.as_ptr() as u64,
            data_out: out.as_mut_ptr() as u64,
            flags: BPF_F_TEST_SKB_CHECKSUM_COMPLETE,
            ..TestRunAttributes::default()
        };
        // SAFETY: the attributes are as long as said, and both buffers outlive the call.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw const attributes, size_of_val(&attributes))
        };
        match (result, io::Error::last_os_error()) {
            (0, _) => Ok(Some(true)),
            (_, error) if error.raw_os_error() == Some(libc::EBADMSG) => Ok(Some(false)),
            (_, error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            (_, error) => Err(error).context("cannot run a frame through the program"),
        }
    }

    fn run(&self, program: &str, frame: &[u8], rounds: u32) -> Result<Ran> {
        let program: &SchedClassifier =
            self.ebpf.program(program).context("the program was loaded")?.try_into()?;
        run(program, frame, rounds)
    }
}

/// Loads an XDP program, while its maps are still with it.
pub(crate) fn load_xdp(ebpf: &mut Ebpf, name: &str) -> Result<()> {
    let program: &mut Xdp =
        ebpf.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?;
    program.load().with_context(|| format!("the verifier refuses {name}"))
}

/// The same as [`run`] for an XDP program. An encapsulated frame comes out longer.
pub(crate) fn run_xdp(ebpf: &Ebpf, name: &str, frame: &[u8], rounds: u32) -> Result<Ran> {
    let program: &Xdp = ebpf.program(name).with_context(|| format!("no program {name}"))?.try_into()?;
    run(program, frame, rounds)
}

/// A frame arrives at a program; it is sent through again as it came out, `rounds` times in all.
pub(crate) fn run<P>(program: &P, frame: &[u8], rounds: u32) -> Result<Ran>
where
    P: for<'a> TestRun<Opts<'a> = TestRunOptions<'a>, Result = TestRunResult>,
{
    let mut out = vec![0; frame.len() + 64];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        repeat: rounds,
        ..TestRunOptions::new()
    };
    let result = program
        .test_run(options)
        .with_context(|| format!("cannot run a frame of {} bytes through the program", frame.len()))?;
    out.truncate(result.data_size_out as usize);
    Ok(Ran { action: result.return_value as i32, frame: out, duration: result.duration })
}

/// A key as it lies in the map.
pub fn bytes_of_key(key: &DatagramKey) -> [u8; size_of::<DatagramKey>()] {
    // SAFETY: it is made of integers of one size.
    unsafe { std::mem::transmute_copy(key) }
}

/// The part of the kernel's `union bpf_attr` for BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Default)]
struct TestRunAttributes {
    program: u32,
    result: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    reserved: u32,
}

/// What the programs read as the time, in ns: CLOCK_MONOTONIC, and the same as of the last tick.
pub fn monotonic_now() -> (u64, u64) {
    let read = |clock| {
        // SAFETY: all-zero is a valid `timespec`.
        let mut time: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: a valid place for the result.
        let result = unsafe { libc::clock_gettime(clock, &mut time) };
        assert_eq!(result, 0, "every Linux has this clock");
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    (read(libc::CLOCK_MONOTONIC), read(libc::CLOCK_MONOTONIC_COARSE))
}
