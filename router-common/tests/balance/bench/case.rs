//! Random tables and packets, drawn from bytes: property tests, fuzzing and the comparison with the kernel programs draw alike.
//!
//! A case is a story: clients' packets, answers to what has reached instances, errors about what has left, fragments in any order, time that
//! passes, instances that go and come. There are few clients, ports and places, so that packets meet one another.

use std::net::IpAddr;

use arbitrary::{Arbitrary, Unstructured};
use router_common::abi::balance::{
    AFFINITY, DENY, ENDED, NO_RING, RuleKey, SILENT, TAKES_FLOWS, TAKES_RETURNING_CLIENTS, UNREACHABLE,
};
use router_common::path::Verdict;
use router_common::path::balance::Outcome;
use router_common::path::balance::memory::MemoryTables;
use router_common::wire::{PROTOCOL_TCP, PROTOCOL_UDP};

use super::frames::{self, ends_of};
use super::ip::Ip;
use super::{ACK, FIN, INSTANCES, MODES, RST, SYN, behind, instance_index, service_index};

/// Steps of one case, and frames that errors and answers may be about: more would only take longer.
const MOST: usize = 48;
/// So few that they are full now and then.
pub const MOST_BUCKETS: usize = 4;
/// Prefix length of a rule that names one client: the set's bits and an address of IPv4.
const ONE_CLIENT: u32 = 64;
const RULES: u32 = 9;
/// From here on a TCP packet's flags go with a number that lies far away.
const STRAY: u8 = 224;

thread_local! {
    /// Made once: the endpoints are many.
    static BASE: MemoryTables = super::tables(MOST_BUCKETS);
}

/// Tables, and what happens to them. Either version of IP may carry the packets.
#[derive(Clone, Debug)]
pub struct Case {
    world: World,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Debug)]
struct World {
    flow_seed: u32,
    buckets: u8,
    source_ports: u8,
    new_flow_limit: u8,
    /// A bit for each mode.
    affinity: u8,
    /// Clients that have a rule of their own, and what it says.
    rules: Vec<(u8, u8)>,
    mtu_to_instances: u8,
    mtu_to_clients: u8,
    way_out: u8,
}

#[derive(Arbitrary, Clone, Debug)]
enum Step {
    Client(PacketPlan),
    /// To one of the packets that have left, as if it had reached an instance.
    Answer {
        to: u8,
        packet: PacketPlan,
    },
    Error {
        about: u8,
        error: ErrorPlan,
    },
    Pieces(PiecesPlan),
    /// First packets from many ports.
    Flood {
        packet: PacketPlan,
        count: u8,
    },
    Later(u8),
    Instance {
        number: u8,
        flags: u8,
    },
    NobodyServes(u8),
    ListenerEnds {
        mode: u8,
        ended: u8,
    },
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Clone, Debug)]
struct PacketPlan {
    client: u8,
    port: u8,
    mode: u8,
    is_udp: bool,
    flags: u8,
    payload: u16,
    tos: u8,
    ttl: u8,
    without_checksum: bool,
    oddity: Oddity,
}

#[derive(Arbitrary, Clone, Debug)]
struct ErrorPlan {
    kind: u8,
    rest: u32,
    shown: u8,
    oddity: Oddity,
}

#[derive(Arbitrary, Clone, Debug)]
struct PiecesPlan {
    packet: PacketPlan,
    answers: Option<u8>,
    identification: u8,
    first: u8,
    order: u8,
}

/// What may be wrong with a frame.
#[derive(Arbitrary, Clone, Debug)]
enum Oddity {
    None,
    TruncatedTo(u16),
    PaddedBy(u8),
    Byte { at: u16, value: u8 },
    Options(u8),
    Length(u16),
    Tags(Vec<u16>),
    ToPort(u16),
}

impl Case {
    /// Any bytes are a case; where they end, everything is zero.
    pub fn draw(bytes: &[u8]) -> Self {
        let mut bytes = Unstructured::new(bytes);
        let plain = "plain data can always be drawn";
        let world = World::arbitrary(&mut bytes).expect(plain);
        let mut steps = Vec::new();
        while !bytes.is_empty() && steps.len() < MOST {
            steps.push(Step::arbitrary(&mut bytes).expect(plain));
        }
        Self { world, steps }
    }

    /// The tables at the beginning.
    pub fn tables(&self, ip: Ip) -> MemoryTables {
        self.world.tables(ip)
    }

    /// Plays it: `carry` takes each frame along, and says what has become of it.
    pub fn play(
        &self,
        ip: Ip,
        tables: &mut MemoryTables,
        mut carry: impl FnMut(&mut MemoryTables, &[u8]) -> (Option<Outcome>, Vec<u8>),
    ) {
        let mut left: Vec<Vec<u8>> = Vec::new();
        for step in &self.steps {
            for frame in step.frames(ip, &left) {
                let (outcome, after) = carry(tables, &frame);
                let verdict = outcome.map(|outcome| outcome.verdict());
                let is_sent = matches!(verdict, Some(Verdict::Redirect { .. } | Verdict::Resolve { .. }));
                if is_sent && left.len() < MOST {
                    left.push(after);
                }
            }
            step.change(ip, tables);
        }
    }
}

impl World {
    fn tables(&self, ip: Ip) -> MemoryTables {
        let buckets = 1 + usize::from(self.buckets) % MOST_BUCKETS;
        let mut tables = BASE.with(MemoryTables::clone);
        tables.flows.truncate(buckets);
        tables.replies.truncate(buckets);
        tables.settings.buckets.set(buckets as u32);
        tables.settings.flow_seed.set(self.flow_seed);
        tables.settings.ports.set(1 + u32::from(self.source_ports) % 64);
        tables.settings.new_flow_limit.set((self.new_flow_limit % 16).into());
        for protocol in [PROTOCOL_TCP, PROTOCOL_UDP] {
            for (bit, mode) in MODES.into_iter().enumerate() {
                let service = &tables.services[behind(ip, service_index(protocol, mode)) as usize];
                if self.affinity & 1 << bit != 0 {
                    service.flags.set(AFFINITY);
                    service.affinity_idle.set(100);
                }
                if !self.rules.is_empty() {
                    service.rules.set(RULES);
                }
            }
        }
        for (client, says) in self.rules.iter().take(4) {
            let value = match says % 4 {
                0 => DENY,
                1 => DENY | SILENT,
                2 => super::group_index(ip, PROTOCOL_TCP),
                // There is none.
                _ => 1 << 20,
            };
            let client = super::words(super::client(ip, client % 4));
            let length = if ip == Ip::V4 { ONE_CLIENT } else { 32 + 128 };
            tables.rules.retain(|(key, ..)| key.client != client);
            tables.rules.push((RuleKey { set: RULES, client }, length, value));
        }
        let mtu = |plan: u8| [1_500, 0, 1_280, 600, 9_000][usize::from(plan) % 5];
        tables.next_hops[1].mtu.set(mtu(self.mtu_to_instances));
        tables.next_hops[1].resolved.set(u32::from(self.way_out % 4 != 1));
        if self.way_out % 16 == 2 {
            tables.next_hops[1].interface.set(0);
        }
        tables.links[1].mtu.set(mtu(self.mtu_to_clients));
        tables
    }
}

impl Step {
    /// What arrives; `left` are the frames that have left so far.
    fn frames(&self, ip: Ip, left: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let of = |number: u8| left.get(usize::from(number) % left.len().max(1));
        match self {
            Self::Client(packet) => {
                let packet = PacketPlan { port: packet.port % 8, ..packet.clone() };
                vec![packet.oddity.apply(ip, packet.by_client(ip))]
            }
            Self::Answer { to, packet } => {
                let answer = of(*to).and_then(|frame| packet.answer(ip, frame));
                answer.map(|frame| packet.oddity.apply(ip, frame)).into_iter().collect()
            }
            Self::Error { about, error } => {
                of(*about).map(|frame| error.oddity.apply(ip, error.about(ip, frame))).into_iter().collect()
            }
            Self::Pieces(PiecesPlan { packet, answers, identification, first, order }) => {
                let whole = match answers {
                    None => Some(packet.by_client(ip)),
                    Some(to) => of(*to).and_then(|frame| packet.answer(ip, frame)),
                };
                let Some(whole) = whole else { return Vec::new() };
                let first = 8 * usize::from(*first % 8);
                if whole.len() < ip.tcp() + first {
                    return Vec::new();
                }
                let [one, two] = frames::cut(&whole, u16::from(*identification % 8), first);
                let one = packet.oddity.apply(ip, one);
                match order % 4 {
                    0 => vec![one, two],
                    1 => vec![two, one],
                    2 => vec![one, two.clone(), two],
                    _ => vec![two],
                }
            }
            Self::Flood { packet, count } => {
                let from = |port| PacketPlan { port, flags: 0, payload: 0, ..packet.clone() }.by_client(ip);
                (0..count % 32).map(|port| from(16 + port)).collect()
            }
            Self::Raw(bytes) => vec![bytes.clone()],
            Self::Later(_) | Self::Instance { .. } | Self::NobodyServes(_) | Self::ListenerEnds { .. } => {
                Vec::new()
            }
        }
    }

    fn change(&self, ip: Ip, tables: &mut MemoryTables) {
        match *self {
            Self::Later(ticks) => pass(tables, ticks.into()),
            Self::Instance { number, flags } => {
                let protocol = if number & 1 == 0 { PROTOCOL_TCP } else { PROTOCOL_UDP };
                let index = behind(ip, instance_index(protocol, 1 + u32::from(number) / 2 % INSTANCES));
                let flags = [0, UNREACHABLE, TAKES_RETURNING_CLIENTS, TAKES_FLOWS | TAKES_RETURNING_CLIENTS]
                    [usize::from(flags) % 4];
                tables.instances[index as usize].flags.set(flags);
            }
            Self::NobodyServes(nobody) => {
                for protocol in [PROTOCOL_TCP, PROTOCOL_UDP] {
                    let index = super::group_index(ip, protocol);
                    tables.groups[index as usize].ring.set(if nobody % 4 == 1 { NO_RING } else { index });
                }
            }
            Self::ListenerEnds { mode, ended } => {
                let mode = MODES[usize::from(mode) % 4];
                let service = &tables.services[behind(ip, service_index(PROTOCOL_TCP, mode)) as usize];
                let flags = service.flags.get();
                service.flags.set(if ended % 4 == 1 { flags | ENDED } else { flags & !ENDED });
            }
            _ => {}
        }
    }
}

/// Lets time pass. The clock stands, so everything that was noted becomes older.
fn pass(tables: &mut MemoryTables, ticks: u32) {
    for flow in tables.flows.iter().flat_map(|bucket| &bucket.flows) {
        for cell in [&flow.last_seen, &flow.born] {
            cell.set(cell.get().wrapping_sub(ticks));
        }
    }
    for affinity in tables.clients.borrow_mut().values_mut() {
        affinity.seen = affinity.seen.wrapping_sub(ticks);
    }
    for course in tables.datagrams.borrow_mut().values_mut() {
        course.seen = course.seen.wrapping_sub(ticks);
    }
    let began = &tables.new_flows.began;
    began.set(began.get().wrapping_sub(ticks));
}

impl PacketPlan {
    fn protocol(&self) -> u8 {
        if self.is_udp { PROTOCOL_UDP } else { PROTOCOL_TCP }
    }

    fn by_client(&self, ip: Ip) -> Vec<u8> {
        let client = (super::client(ip, self.client % 4), 40_000 + u16::from(self.port));
        let mode = MODES[usize::from(self.mode) % 4];
        self.frame(ip, client, (super::vip(ip), super::port_of(mode)), self.protocol())
    }

    /// What the receiver of a frame would answer; `None` if that is no packet with ports.
    fn answer(&self, ip: Ip, frame: &[u8]) -> Option<Vec<u8>> {
        let (source, destination, protocol) = ends_of(frame)?;
        Some(self.frame(ip, destination, source, protocol))
    }

    fn frame(&self, ip: Ip, source: (IpAddr, u16), destination: (IpAddr, u16), protocol: u8) -> Vec<u8> {
        let flags =
            [SYN, ACK, SYN | ACK, FIN | ACK, RST, RST | ACK, SYN | FIN, 0][usize::from(self.flags) % 8];
        let payload: Vec<u8> = (0..self.payload % 1_600).map(|at| at as u8 ^ self.tos).collect();
        let mut frame = super::frame(source, destination, protocol, flags, &payload);
        if self.flags >= STRAY && protocol == PROTOCOL_TCP {
            frame = super::numbered(frame, u32::from(self.flags) << 24);
        }
        match ip {
            Ip::V4 => frame[15] = self.tos,
            Ip::V6 => frame[15] = self.tos << 4,
        }
        frame[ip.ttl()] = self.ttl;
        if self.without_checksum && protocol == PROTOCOL_UDP {
            frame[ip.tcp() + 6..ip.tcp() + 8].fill(0);
        }
        frames::set_header_checksum(ip, &mut frame);
        frame
    }
}

impl ErrorPlan {
    fn about(&self, ip: Ip, frame: &[u8]) -> Vec<u8> {
        let kind = match (ip, self.kind % 5) {
            (Ip::V4, kind) => [3, 11, 12, 0, 8][usize::from(kind)],
            (Ip::V6, kind) => [1, 2, 3, 4, 128][usize::from(kind)],
        };
        let [a, b, c, d] = self.rest.to_be_bytes();
        let least = ip.header() + 8;
        let shown = &frame[14..frame.len().min(14 + least + usize::from(self.shown))];
        let router = match ip {
            Ip::V4 => [10, 99, 0, 1].into(),
            Ip::V6 => [0xfd99, 0, 0, 0, 0, 0, 0, 1].into(),
        };
        frames::error(ip, router, [kind, self.kind / 5, 0, 0, a, b, c, d], shown)
    }
}

impl Oddity {
    fn apply(&self, ip: Ip, mut frame: Vec<u8>) -> Vec<u8> {
        match self {
            Self::None => {}
            Self::TruncatedTo(len) => frame.truncate(usize::from(*len) % (frame.len() + 1)),
            Self::PaddedBy(len) => frame.extend(std::iter::repeat_n(0xee, usize::from(*len % 64))),
            Self::Byte { at, value } => {
                // Whom a frame is for is not for its bytes to say in memory, and whom it comes from is always the same.
                let at = 12 + usize::from(*at) % (frame.len() - 12);
                frame[at] = *value;
            }
            Self::Options(words) => {
                let words = 1 + usize::from(words % 4);
                if ip == Ip::V4 {
                    frame.splice(34..34, std::iter::repeat_n(1, 4 * words));
                    frame[14] = 0x45 + words as u8;
                } else {
                    let options = [frame[ip.protocol()], 0, 1, 4, 0, 0, 0, 0];
                    frame.splice(ip.tcp()..ip.tcp(), options);
                    frame[ip.protocol()] = [0, 43, 60, 51][words - 1];
                }
                let length = ip.length_to_write(frame.len() - 14);
                frame[ip.length_field()].copy_from_slice(&length);
            }
            Self::Length(length) => frame[ip.length_field()].copy_from_slice(&length.to_be_bytes()),
            Self::Tags(tags) => {
                for tag in tags.iter().take(2) {
                    let [high, low] = tag.to_be_bytes();
                    frame.splice(12..12, [0x81, 0x00, high, low]);
                }
            }
            Self::ToPort(port) => {
                if let Some(place) = frame.get_mut(ip.tcp() + 2..ip.tcp() + 4) {
                    place.copy_from_slice(&port.to_be_bytes());
                }
            }
        }
        frame
    }
}
