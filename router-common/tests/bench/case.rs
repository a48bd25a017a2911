//! Random flows and packets, drawn from bytes: property tests, fuzzing and the comparison with the kernel programs draw alike.
//!
//! Numbers that chance alone would hardly bring near one another, such as a segment and the cut that it straddles, are distances
//! from landmarks. The landmarks themselves lie anywhere, so all arithmetic is seen to wrap.

use std::net::{IpAddr, SocketAddr};

use arbitrary::{Arbitrary, Unstructured};
use router_common::abi::flow::{
    FLAG_DIRECT, FLAG_ERASE_TIMESTAMPS, FLAG_IPV6, FLAG_LIVE, FLAG_TIMESTAMPS, Flow, Progress, Translation,
};
use router_common::abi::key::{FlowRef, Side};
use router_common::path::memory::MemoryFlows;
use router_common::wire::checksum;

use super::ip::Ip;
use super::{fill_addresses, key};

/// One flow, and packets that meet it one after the other. Either version of IP may carry them.
#[derive(Arbitrary, Clone, Debug)]
pub struct Case {
    pub flow: FlowPlan,
    pub packets: Vec<PacketPlan>,
}

impl Case {
    /// Any bytes are a case; where they end, everything is zero.
    pub fn draw(bytes: &[u8]) -> Self {
        Self::arbitrary_take_rest(Unstructured::new(bytes)).expect("plain data can always be drawn")
    }
}

/// How far from a landmark, mostly near.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Distance {
    None,
    Bytes(i8),
    Segments(i16),
    Anywhere(i32),
}

impl Distance {
    pub fn from(self, landmark: u32) -> u32 {
        let distance = match self {
            Self::None => 0,
            Self::Bytes(distance) => distance.into(),
            Self::Segments(distance) => distance.into(),
            Self::Anywhere(distance) => distance,
        };
        landmark.wrapping_add_signed(distance)
    }
}

#[derive(Arbitrary, Clone, Debug)]
pub struct FlowPlan {
    client: [u8; 5],
    vip: [u8; 6],
    source: [u8; 6],
    instance: [u8; 5],
    client_side: SidePlan,
    instance_side: SidePlan,
}

/// One sender.
#[derive(Arbitrary, Clone, Debug)]
struct SidePlan {
    /// The landmark of its own space.
    origin: u32,
    seq_delta: u32,
    seq_cut: Distance,
    ack_cut: Distance,
    max_seq: Distance,
    max_ack: Distance,
    window_edge: Distance,
    fin_end: Distance,
    fin_seen: bool,
    rst_seen: bool,
    timestamp_delta: u32,
    clock_offset: u32,
    flags: u8,
    sender_scale: u8,
    our_scale: u8,
    unresolved: bool,
}

impl FlowPlan {
    /// Client, VIP, source and instance. The senders are never the same, or two keys would be one.
    pub fn ends(&self, ip: Ip) -> [SocketAddr; 4] {
        let prefixed = |first: u8, rest: &[u8; 5]| [first, rest[0], rest[1], rest[2], rest[3], rest[4]];
        let ends = [prefixed(10, &self.client), self.vip, self.source, prefixed(172, &self.instance)];
        ends.map(|[a, b, c, d, high, low]| {
            let address: IpAddr = match ip {
                Ip::V4 => [a, b, c, d].into(),
                // Words that differ, from the same four bytes.
                Ip::V6 => [a, b, c, d, b ^ 0xff, c, d, a, c, d ^ 0x5a, a, b, d, a, b ^ 0x33, c ^ 0x81].into(),
            };
            SocketAddr::new(address, u16::from_be_bytes([high, low]))
        })
    }

    fn sides(&self) -> [&SidePlan; 2] {
        [&self.client_side, &self.instance_side]
    }

    /// The landmark of `side`'s own space, and that of what it acknowledges.
    pub fn landmarks(&self, side: Side) -> (u32, u32) {
        let (own, other) = match side {
            Side::Client => (&self.client_side, &self.instance_side),
            Side::Instance => (&self.instance_side, &self.client_side),
        };
        (own.origin, other.origin.wrapping_add(other.seq_delta))
    }

    /// The flow in a table of its own, in slot 0.
    pub fn table(&self, ip: Ip) -> MemoryFlows {
        let [client, vip, source, instance] = self.ends(ip);
        let flow = Flow::default();
        for (side, old, new) in [
            (Side::Client, [client, vip], [source, instance]),
            (Side::Instance, [instance, source], [vip, client]),
        ] {
            let (own, acknowledged) = self.landmarks(side);
            let plan = self.sides()[side as usize];
            plan.fill_translation(ip, flow.translation(side), own, acknowledged);
            plan.fill_progress(flow.progress(side), own, acknowledged);
            fill_addresses(flow.translation(side), old, new);
        }
        flow.translations[0].next_hop.set(super::TO_INSTANCE as u32);
        flow.translations[1].next_hop.set(super::TO_CLIENT as u32);
        let table =
            MemoryFlows { flows: vec![flow], next_hops: super::next_hops(ip), ..MemoryFlows::default() };
        table.keys.borrow_mut().insert(key(client, vip), FlowRef::new(0, Side::Client));
        table.keys.borrow_mut().insert(key(instance, source), FlowRef::new(0, Side::Instance));
        table.next_hops[super::TO_INSTANCE].resolved.set(u32::from(!self.client_side.unresolved));
        table.next_hops[super::TO_CLIENT].resolved.set(u32::from(!self.instance_side.unresolved));
        table
    }

    /// The flow that undoes this one: its client is where this one's packets to the instance go.
    pub fn mirrored(&self, ip: Ip) -> MemoryFlows {
        let table = self.table(ip);
        let [client, vip, source, instance] = self.ends(ip);
        table.keys.borrow_mut().clear();
        table.keys.borrow_mut().insert(key(source, instance), FlowRef::new(0, Side::Client));
        table.keys.borrow_mut().insert(key(vip, client), FlowRef::new(0, Side::Instance));
        let flow = &table.flows[0];
        fill_addresses(flow.translation(Side::Client), [source, instance], [client, vip]);
        fill_addresses(flow.translation(Side::Instance), [vip, client], [instance, source]);
        for (translation, progress) in flow.translations.iter().zip(&flow.progress) {
            translation.seq_delta.set(translation.seq_delta.get().wrapping_neg());
            progress.timestamp_delta.set(progress.timestamp_delta.get().wrapping_neg());
        }
        table
    }
}

impl SidePlan {
    fn fill_translation(&self, ip: Ip, translation: &Translation, own: u32, acknowledged: u32) {
        translation.seq_delta.set(self.seq_delta);
        translation.seq_cut.set(self.seq_cut.from(own));
        translation.ack_cut.set(self.ack_cut.from(acknowledged));
        translation.clock_offset.set(self.clock_offset);
        let mut flags = if self.flags >= 0xf8 { 0 } else { FLAG_LIVE };
        if ip == Ip::V6 {
            flags |= FLAG_IPV6;
        }
        for (bit, flag) in [(1, FLAG_DIRECT), (2, FLAG_TIMESTAMPS), (4, FLAG_ERASE_TIMESTAMPS)] {
            if self.flags & bit != 0 {
                flags |= flag;
            }
        }
        translation.traits.set(Translation::pack_traits(flags, self.sender_scale % 15, self.our_scale % 15));
    }

    fn fill_progress(&self, progress: &Progress, own: u32, acknowledged: u32) {
        progress.max_seq.set(self.max_seq.from(own));
        progress.max_ack.set(self.max_ack.from(acknowledged));
        progress.window_edge.set(self.window_edge.from(acknowledged));
        progress.fin_end.set(self.fin_end.from(own));
        progress.fin_seen.set(self.fin_seen.into());
        progress.rst_seen.set(self.rst_seen.into());
        progress.timestamp_delta.set(self.timestamp_delta);
    }
}

/// A packet of the flow.
#[derive(Arbitrary, Clone, Debug)]
pub struct PacketPlan {
    from_instance: bool,
    seq: Distance,
    ack: Distance,
    flags: u8,
    window: u16,
    urgent: u16,
    tos: u8,
    identification: u16,
    dont_fragment: bool,
    ttl: u8,
    reserved_bits: u8,
    options: OptionsPlan,
    payload: PayloadPlan,
    pub oddity: Oddity,
}

#[derive(Arbitrary, Clone, Debug)]
enum PayloadPlan {
    None,
    Short(u8),
    Segment(u16),
}

impl PayloadPlan {
    fn len(&self) -> usize {
        match *self {
            Self::None => 0,
            Self::Short(len) => len.into(),
            Self::Segment(len) => usize::from(len) % 1461,
        }
    }
}

/// The layouts that stacks send, and any other.
#[derive(Arbitrary, Clone, Debug)]
enum OptionsPlan {
    None,
    Timestamps(u32, u32),
    TimestampsAndSack(u32, u32, Vec<[Distance; 2]>),
    Listed(Vec<OptionPlan>),
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Clone, Debug)]
enum OptionPlan {
    Nop,
    End,
    MaximumSegmentSize(u16),
    WindowScale(u8),
    SackPermitted,
    Sack(Vec<[Distance; 2]>),
    Timestamps(u32, u32),
    Other { kind: u8, value: Vec<u8> },
}

/// What may be wrong with a frame.
#[derive(Arbitrary, Clone, Debug)]
pub enum Oddity {
    None,
    TruncatedTo(u16),
    PaddedBy(u8),
    Byte { at: u8, value: u8 },
    IpOptions(Vec<u32>),
    Fragment(u16),
    TotalLength(u16),
    DataOffset(u8),
    TcpChecksum(u16),
    Vlan(u16),
    DoubleVlan(u16, u16),
    OtherPort(u16),
    Garbage(Vec<u8>),
}

impl PacketPlan {
    fn side(&self) -> Side {
        if self.from_instance { Side::Instance } else { Side::Client }
    }

    /// A valid frame of the flow, but for its options, which may be malformed.
    pub fn frame(&self, ip: Ip, flow: &FlowPlan) -> Vec<u8> {
        let [client, vip, source, instance] = flow.ends(ip);
        let (from, to) = if self.from_instance { (instance, source) } else { (client, vip) };
        let (own, acknowledged) = flow.landmarks(self.side());
        let options = self.options.bytes(acknowledged);
        let payload_len = self.payload.len();
        let length = ip.length_to_write(ip.header() + 20 + options.len() + payload_len);
        let [id_high, id_low] = self.identification.to_be_bytes();

        let mut frame = [super::OWN_MAC, super::CLIENT_MAC].concat();
        frame.extend(ip.ethertype());
        match ip {
            Ip::V4 => {
                frame.extend([0x45, self.tos]);
                frame.extend(length);
                frame.extend([
                    id_high,
                    id_low,
                    if self.dont_fragment { 0x40 } else { 0 },
                    0,
                    self.ttl,
                    6,
                    0,
                    0,
                ]);
            }
            Ip::V6 => {
                frame.extend([
                    0x60 | self.tos >> 4,
                    self.tos << 4 | self.reserved_bits & 15,
                    id_high,
                    id_low,
                ]);
                frame.extend(length);
                frame.extend([6, self.ttl]);
            }
        }
        for end in [from, to] {
            match end.ip() {
                IpAddr::V4(address) => frame.extend(address.octets()),
                IpAddr::V6(address) => frame.extend(address.octets()),
            }
        }
        frame.extend(from.port().to_be_bytes());
        frame.extend(to.port().to_be_bytes());
        frame.extend(self.seq.from(own).to_be_bytes());
        frame.extend(self.ack.from(acknowledged).to_be_bytes());
        frame.extend([((5 + options.len() / 4) << 4) as u8 | self.reserved_bits & 15, self.flags]);
        frame.extend(self.window.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(self.urgent.to_be_bytes());
        frame.extend(&options);
        frame.extend((0..payload_len).map(|at| (at as u8).wrapping_mul(31) ^ self.window as u8));
        super::set_checksums(&mut frame);
        frame
    }

    /// The frame with its oddity.
    pub fn odd_frame(&self, ip: Ip, flow: &FlowPlan) -> Vec<u8> {
        let mut frame = self.frame(ip, flow);
        match &self.oddity {
            Oddity::None => {}
            Oddity::TruncatedTo(len) => frame.truncate(usize::from(*len) % (frame.len() + 1)),
            Oddity::PaddedBy(len) => frame.resize(frame.len() + usize::from(*len), 0x55),
            Oddity::Byte { at, value } => {
                let at = usize::from(*at) % frame.len();
                frame[at] = *value;
            }
            Oddity::IpOptions(words) => match ip {
                Ip::V4 => insert_options(&mut frame, &words[..words.len().min(10)]),
                Ip::V6 => insert_extension(&mut frame, words),
            },
            Oddity::Fragment(field) => match ip {
                Ip::V4 => {
                    frame[20..22].copy_from_slice(&field.to_be_bytes());
                    set_header_checksum(&mut frame);
                }
                Ip::V6 => insert_fragment_header(&mut frame, *field),
            },
            Oddity::TotalLength(length) => frame[ip.length_field()].copy_from_slice(&length.to_be_bytes()),
            Oddity::DataOffset(byte) => frame[ip.tcp() + 12] = *byte,
            Oddity::TcpChecksum(checksum) => {
                frame[ip.tcp() + 16..ip.tcp() + 18].copy_from_slice(&checksum.to_ne_bytes());
            }
            Oddity::Vlan(tag) => insert_tag(&mut frame, 0x8100, *tag),
            Oddity::DoubleVlan(inner, outer) => {
                insert_tag(&mut frame, 0x8100, *inner);
                insert_tag(&mut frame, 0x88a8, *outer);
            }
            Oddity::OtherPort(port) => {
                frame[ip.tcp()..ip.tcp() + 2].copy_from_slice(&port.to_ne_bytes());
            }
            Oddity::Garbage(bytes) => frame = bytes.clone(),
        }
        frame
    }
}

fn insert_options(frame: &mut Vec<u8>, words: &[u32]) {
    frame[14] += words.len() as u8;
    frame.splice(34..34, words.iter().flat_map(|word| word.to_be_bytes()));
    set_header_checksum(frame);
}

/// Valid, but for what the path does not carry.
fn set_header_checksum(frame: &mut [u8]) {
    let end = 14 + usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let checksum = checksum::full(&frame[14..end], 0).to_ne_bytes();
    frame[24..26].copy_from_slice(&checksum);
}

/// Before TCP, an extension header that holds these words; with none of them, none.
fn insert_extension(frame: &mut Vec<u8>, words: &[u32]) {
    let Some((kind, words)) = words.split_first() else { return };
    let kind = [0, 43, 51, 60, 135, 139, 140][*kind as usize % 7];
    let mut header = vec![6, 0];
    header.extend(words.iter().take(64).flat_map(|word| word.to_be_bytes()));
    header.resize(header.len().next_multiple_of(8), 0);
    // In units of 8 bytes, the first not counted.
    header[1] = (header.len() / 8 - 1) as u8;
    insert_before_tcp(frame, kind, &header);
}

fn insert_fragment_header(frame: &mut Vec<u8>, field: u16) {
    let [high, low] = field.to_be_bytes();
    insert_before_tcp(frame, 44, &[6, 0, high, low, 1, 2, 3, 4]);
}

fn insert_before_tcp(frame: &mut Vec<u8>, kind: u8, header: &[u8]) {
    frame[20] = kind;
    frame.splice(54..54, header.iter().copied());
    let length = Ip::V6.length_to_write(frame.len() - 14);
    frame[Ip::V6.length_field()].copy_from_slice(&length);
}

fn insert_tag(frame: &mut Vec<u8>, protocol: u16, tag: u16) {
    let [a, b] = protocol.to_be_bytes();
    let [c, d] = tag.to_be_bytes();
    frame.splice(12..12, [a, b, c, d]);
}

impl OptionsPlan {
    /// A multiple of 4 bytes, 40 at most.
    fn bytes(&self, acknowledged: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::None => {}
            Self::Timestamps(value, echo) => {
                bytes.extend([1, 1]);
                timestamps(&mut bytes, *value, *echo);
            }
            Self::TimestampsAndSack(value, echo, blocks) => {
                bytes.extend([1, 1]);
                timestamps(&mut bytes, *value, *echo);
                bytes.extend([1, 1]);
                sack(&mut bytes, &blocks[..blocks.len().min(3)], acknowledged);
            }
            Self::Listed(options) => {
                for option in options {
                    let before = bytes.len();
                    option.append(&mut bytes, acknowledged);
                    if bytes.len() > 40 {
                        bytes.truncate(before);
                    }
                }
            }
            Self::Raw(raw) => bytes.extend(raw),
        }
        bytes.truncate(40);
        bytes.resize(bytes.len().next_multiple_of(4), 1);
        bytes
    }
}

impl OptionPlan {
    fn append(&self, bytes: &mut Vec<u8>, acknowledged: u32) {
        match self {
            Self::Nop => bytes.push(1),
            Self::End => bytes.push(0),
            Self::MaximumSegmentSize(size) => bytes.extend([&[2, 4], &size.to_be_bytes()[..]].concat()),
            Self::WindowScale(scale) => bytes.extend([3, 3, *scale]),
            Self::SackPermitted => bytes.extend([4, 2]),
            Self::Sack(blocks) => sack(bytes, &blocks[..blocks.len().min(4)], acknowledged),
            Self::Timestamps(value, echo) => timestamps(bytes, *value, *echo),
            Self::Other { kind, value } => {
                bytes.extend([*kind, 2 + value.len().min(38) as u8]);
                bytes.extend(&value[..value.len().min(38)]);
            }
        }
    }
}

fn timestamps(bytes: &mut Vec<u8>, value: u32, echo: u32) {
    bytes.extend([8, 10]);
    bytes.extend(value.to_be_bytes());
    bytes.extend(echo.to_be_bytes());
}

fn sack(bytes: &mut Vec<u8>, blocks: &[[Distance; 2]], acknowledged: u32) {
    bytes.extend([5, 2 + 8 * blocks.len() as u8]);
    for edge in blocks.iter().flatten() {
        bytes.extend(edge.from(acknowledged).to_be_bytes());
    }
}
