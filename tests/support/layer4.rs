//! The loaded Layer-4 program by itself: tables to fill, and frames to run through (BPF_PROG_TEST_RUN). Nothing is attached.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::mem::transmute_copy;
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, anyhow};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData, PerCpuArray, PerCpuValues};
use aya::programs::{ProgramFd, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};
use router::flows::kernel::OBJECT;
use router_common::abi::balance::{
    Affinity, AffinityKey, Course, EndpointBucket, FlowBucket, Group, Instance, Link, ReplyBucket, RingChunk,
    RuleKey, Service, Settings, Tunnel,
};
use router_common::abi::next_hop::NextHop;
use router_common::abi::reason::PacketReason;
use router_common::path::balance::memory::MemoryTables;
use router_common::path::fragment::DatagramKey;

use crate::datapath::{Ran, bytes_of_key, load_xdp, run, run_xdp};
use crate::lab::PinDirectory;
use crate::xdp_maps::XdpMaps;

/// An array map whose values are written and read as bytes.
struct Values<T, const N: usize> {
    map: RefCell<Array<MapData, [u8; N]>>,
    of: std::marker::PhantomData<T>,
}

impl<T, const N: usize> Values<T, N> {
    fn take(ebpf: &mut Ebpf, name: &str) -> Result<Self> {
        const { assert!(size_of::<T>() == N) };
        let map = ebpf.take_map(name).ok_or_else(|| anyhow!("no map {name}"))?.try_into()?;
        Ok(Self { map: RefCell::new(map), of: std::marker::PhantomData })
    }

    fn hold(&self, values: &[T]) -> Result<()> {
        for (index, value) in (0..).zip(values) {
            // SAFETY: the types of these tables are integers only, without padding.
            let bytes: [u8; N] = unsafe { transmute_copy(value) };
            self.map.borrow_mut().set(index, bytes, 0)?;
        }
        Ok(())
    }

    fn read(&self, count: usize) -> Result<Vec<[u8; N]>> {
        (0..count as u32).map(|index| Ok(self.map.borrow().get(&index, 0)?)).collect()
    }
}

/// The bytes of values as a map would hold them.
pub fn bytes_of<T, const N: usize>(values: &[T]) -> Vec<[u8; N]> {
    assert_eq!(size_of::<T>(), N);
    // SAFETY: as above.
    values.iter().map(|value| unsafe { transmute_copy(value) }).collect()
}

/// The program with maps of its own.
pub struct Layer4 {
    settings: Values<Settings, 64>,
    endpoints: Values<EndpointBucket, 128>,
    services: Values<Service, 64>,
    instances: Values<Instance, 64>,
    tunnels: Values<Tunnel, 8>,
    groups: Values<Group, 8>,
    rings: Values<RingChunk, 64>,
    flows: Values<FlowBucket, 1024>,
    replies: Values<ReplyBucket, 64>,
    next_hops: Values<NextHop, { size_of::<NextHop>() }>,
    rules: RefCell<LpmTrie<MapData, RuleKey, u32>>,
    clients: RefCell<HashMap<MapData, AffinityKey, Affinity>>,
    courses: RefCell<HashMap<MapData, [u8; size_of::<DatagramKey>()], Course>>,
    links: Values<Link, 16>,
    new_flows: RefCell<PerCpuArray<MapData, [u32; 4]>>,
    answer_budget: RefCell<PerCpuArray<MapData, [u32; 2]>>,
    packets: PerCpuArray<MapData, u64>,
    pub xdp: XdpMaps,
    ebpf: Ebpf,
    _pins: PinDirectory,
}

impl std::fmt::Debug for Layer4 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layer4").finish_non_exhaustive()
    }
}

impl Layer4 {
    /// Loads the program with maps that are as large as these tables.
    pub fn load(tables: &MemoryTables) -> Result<Self> {
        Self::load_with_buckets(tables, tables.flows.len() as u32)
    }

    /// The same with an empty flow table of so many buckets.
    pub fn load_with_buckets(tables: &MemoryTables, buckets: u32) -> Result<Self> {
        let pins = PinDirectory::new("layer4")?;
        let mut loader = EbpfLoader::new();
        loader
            .default_map_pin_directory(pins.path())
            .map_max_entries("ENDPOINTS", tables.endpoints.len() as u32)
            .map_max_entries("RINGS", tables.rings.len() as u32)
            .map_max_entries("L4_FLOWS", buckets)
            .map_max_entries("REPLIES", buckets);
        let mut ebpf = loader.load(OBJECT).context("cannot create the maps of the kernel programs")?;
        let program: &mut SchedClassifier =
            ebpf.program_mut("router_layer4").context("no program router_layer4")?.try_into()?;
        program.load().context("the verifier refuses router_layer4")?;
        load_xdp(&mut ebpf, "router_xdp_layer4")?;
        let xdp = XdpMaps::take(&mut ebpf)?;
        let ebpf_ = &mut ebpf;
        let layer4 = Self {
            settings: Values::take(ebpf_, "BALANCE_SETTINGS")?,
            endpoints: Values::take(ebpf_, "ENDPOINTS")?,
            services: Values::take(ebpf_, "SERVICES")?,
            instances: Values::take(ebpf_, "INSTANCES")?,
            tunnels: Values::take(ebpf_, "TUNNELS")?,
            groups: Values::take(ebpf_, "GROUPS")?,
            rings: Values::take(ebpf_, "RINGS")?,
            flows: Values::take(ebpf_, "L4_FLOWS")?,
            replies: Values::take(ebpf_, "REPLIES")?,
            next_hops: Values::take(ebpf_, "NEXT_HOPS")?,
            rules: RefCell::new(map(ebpf_, "CLIENT_RULES")?.try_into()?),
            clients: RefCell::new(map(ebpf_, "AFFINITY")?.try_into()?),
            courses: RefCell::new(map(ebpf_, "L4_DATAGRAMS")?.try_into()?),
            links: Values::take(ebpf_, "LINKS")?,
            new_flows: RefCell::new(map(ebpf_, "NEW_FLOWS")?.try_into()?),
            answer_budget: RefCell::new(map(ebpf_, "ANSWER_BUDGET")?.try_into()?),
            packets: map(ebpf_, "PACKETS")?.try_into()?,
            xdp,
            ebpf,
            _pins: pins,
        };
        layer4.endpoints.hold(&tables.endpoints)?;
        layer4.rings.hold(&tables.rings)?;
        layer4.hold(tables)?;
        Ok(layer4)
    }

    /// Makes the maps hold what the tables hold; endpoints and rings as they were when the program was loaded. Senders may be told of an MTU as if none
    /// had been.
    pub fn hold(&self, tables: &MemoryTables) -> Result<()> {
        self.settings.hold(std::slice::from_ref(&tables.settings))?;
        self.services.hold(&tables.services)?;
        self.instances.hold(&tables.instances)?;
        self.tunnels.hold(&tables.tunnels)?;
        self.groups.hold(&tables.groups)?;
        self.flows.hold(&tables.flows)?;
        self.replies.hold(&tables.replies)?;
        self.next_hops.hold(&tables.next_hops)?;
        // Frames arrive by the first interface only.
        self.links.hold(&tables.links[..tables.links.len().min(2)])?;
        let counter = &tables.new_flows;
        fill(&self.new_flows, [counter.began.get(), counter.count.get(), 0, 0])?;
        fill(&self.answer_budget, [0; 2])?;
        let mut courses = self.courses.borrow_mut();
        let known: Vec<_> = courses.keys().collect::<Result<_, _>>()?;
        for key in known {
            courses.remove(&key)?;
        }
        for (key, course) in &*tables.datagrams.borrow() {
            courses.insert(bytes_of_key(key), course, 0)?;
        }
        let mut rules = self.rules.borrow_mut();
        let known: Vec<_> = rules.keys().collect::<Result<_, _>>()?;
        for key in known {
            rules.remove(&key)?;
        }
        for (key, length, value) in &tables.rules {
            rules.insert(&Key::new(*length, *key), value, 0)?;
        }
        let mut clients = self.clients.borrow_mut();
        let known: Vec<AffinityKey> = clients.keys().collect::<Result<_, _>>()?;
        for key in known {
            clients.remove(&key)?;
        }
        for (key, value) in &*tables.clients.borrow() {
            clients.insert(key, value, 0)?;
        }
        Ok(())
    }

    /// Empties the flow table and the table of answers, however large they are.
    pub fn forget_flows(&self) -> Result<()> {
        for (name, value) in [("L4_FLOWS", size_of::<FlowBucket>()), ("REPLIES", size_of::<ReplyBucket>())] {
            let map = self.pinned(name)?;
            let length = map.info()?.max_entries() as usize * value;
            // SAFETY: a new mapping of a map that is as long as this; its values are integers, which kernel programs alone use meanwhile.
            unsafe {
                let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, map.fd().as_fd().as_raw_fd());
                let start = libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, fd, 0);
                if start == libc::MAP_FAILED {
                    return Err(std::io::Error::last_os_error()).context("cannot map the flow table");
                }
                start.write_bytes(0, length);
                libc::munmap(start, length);
            }
        }
        Ok(())
    }

    /// Bytes of memory that the kernel has reserved for a map.
    pub fn memory(&self, map: &str) -> Result<u64> {
        let map = self.pinned(map)?;
        let file = format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd());
        let text = fs::read_to_string(&file).with_context(|| file.clone())?;
        let line = text.lines().find_map(|line| line.strip_prefix("memlock:"));
        Ok(line.with_context(|| format!("{file} has no memlock"))?.trim().parse()?)
    }

    fn pinned(&self, map: &str) -> Result<MapData> {
        MapData::from_pin(self._pins.path().join(map)).with_context(|| format!("no map {map}"))
    }

    /// The program of TC, to be called by others.
    pub fn tc(&self) -> Result<&ProgramFd> {
        let program: &SchedClassifier =
            self.ebpf.program("router_layer4").context("the program was loaded")?.try_into()?;
        Ok(program.fd()?)
    }

    /// That of XDP.
    pub fn xdp_program(&self) -> Result<&ProgramFd> {
        let program: &Xdp =
            self.ebpf.program("router_xdp_layer4").context("the program was loaded")?.try_into()?;
        Ok(program.fd()?)
    }

    /// The bytes of the flow table.
    pub fn flows(&self, buckets: usize) -> Result<Vec<[u8; 1024]>> {
        self.flows.read(buckets)
    }

    /// The bytes of the table of answers.
    pub fn replies(&self, buckets: usize) -> Result<Vec<[u8; 64]>> {
        self.replies.read(buckets)
    }

    /// Where clients were served.
    pub fn clients(&self) -> Result<Vec<(AffinityKey, Affinity)>> {
        Ok(self.clients.borrow().iter().collect::<Result<_, _>>()?)
    }

    /// Which way the fragments of datagrams go.
    pub fn courses(&self) -> Result<BTreeMap<Vec<u8>, Course>> {
        let courses = self.courses.borrow();
        courses
            .iter()
            .map(|entry| entry.map(|(key, course)| (key.to_vec(), course)).map_err(Into::into))
            .collect()
    }

    /// The bytes of the first links.
    pub fn links(&self) -> Result<Vec<[u8; 16]>> {
        self.links.read(2)
    }

    /// The bytes of the first tunnels.
    pub fn tunnels(&self, count: usize) -> Result<Vec<[u8; 8]>> {
        self.tunnels.read(count)
    }

    /// When each processor's second began, in ticks, and how many flows have begun in it.
    pub fn new_flows(&self) -> Result<Vec<[u32; 2]>> {
        let of_all = self.new_flows.borrow().get(&0, 0)?;
        Ok(of_all.iter().map(|[began, count, ..]| [*began, *count]).collect())
    }

    /// Packets by reason, in the order of its numbers.
    pub fn packets(&self) -> Result<Vec<u64>> {
        let sum = |reason: &PacketReason| Ok(self.packets.get(&(reason.index() as u32), 0)?.iter().sum());
        PacketReason::ALL.iter().map(sum).collect()
    }

    /// A frame arrives; it is sent through again as it came out, `rounds` times in all.
    pub fn run(&self, frame: &[u8], rounds: u32) -> Result<Ran> {
        let program: &SchedClassifier =
            self.ebpf.program("router_layer4").context("the program was loaded")?.try_into()?;
        run(program, frame, rounds)
    }

    /// The same at an interface with XDP.
    pub fn run_xdp(&self, frame: &[u8], rounds: u32) -> Result<Ran> {
        run_xdp(&self.ebpf, "router_xdp_layer4", frame, rounds)
    }
}

/// The same value for each processor.
fn fill<const N: usize>(map: &RefCell<PerCpuArray<MapData, [u32; N]>>, value: [u32; N]) -> Result<()>
where
    [u32; N]: aya::Pod,
{
    let values: Vec<_> = map.borrow().get(&0, 0)?.iter().map(|_| value).collect();
    Ok(map.borrow_mut().set(0, PerCpuValues::try_from(values)?, 0)?)
}

fn map(ebpf: &mut Ebpf, name: &str) -> Result<aya::maps::Map> {
    ebpf.take_map(name).ok_or_else(|| anyhow!("no map {name}"))
}

/// Keeps the calling thread on the CPU that it runs on.
pub fn stay_on_this_cpu() {
    // SAFETY: all-zero is an empty set, and the calls read it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}
