//! Questions to the kernel's routing and neighbour tables (rtnetlink(7)), asked and answered synchronously.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Multicast groups of `linux/rtnetlink.h`.
const GROUPS: [u32; 4] = [RTNLGRP_LINK, RTNLGRP_NEIGH, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE];
const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_NEIGH: u32 = 3;
const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV6_ROUTE: u32 = 11;

/// More than the largest message that the kernel sends in one piece.
const BUFFER: usize = 64 * 1024;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Where the kernel would send a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub interface: u32,
    /// The router on the way, or the destination itself where it is on the link. IPv4 may be routed by an IPv6 router.
    pub gateway: IpAddr,
}

/// An interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Some have no Ethernet address.
    pub mac: Option<Mac>,
    /// Bytes from the IP header on; 0 where the kernel does not say.
    pub mtu: u32,
}

/// An interface as it lies among the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub mac: Option<Mac>,
    pub is_up: bool,
    /// What kind of virtual interface it is, such as `veth`; `None` for a network card.
    pub kind: Option<String>,
    /// The interface that it lies on, or that is its other end.
    pub below: Option<u32>,
}

impl Interface {
    pub fn is(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }
}

/// A change that the kernel tells of, or an answer to a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `mac` is `None` where the neighbour's address is not (or no longer) known.
    Neighbour { interface: u32, address: IpAddr, mac: Option<Mac> },
    /// An interface; `None` where it is gone.
    Link { interface: u32, link: Option<Link> },
    /// Some route has changed.
    Routes,
    /// Events were lost: everything may have changed.
    Overrun,
}

/// A socket for questions.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Netlink {
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// The route to `destination`, as `ip route get` answers. An error where there is none.
    pub fn route(&mut self, destination: IpAddr) -> io::Result<Route> {
        let mut message = RouteMessage::default();
        (message.header.address_family, message.header.destination_prefix_length) = match destination {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        message.attributes.push(RouteAttribute::Destination(destination.into()));
        self.ask(RouteNetlinkMessage::GetRoute(message), 0)?;
        let mut route = None;
        self.answers(false, |answer| {
            if let RouteNetlinkMessage::NewRoute(message) = answer {
                route = Some(read_route(&message, destination));
            }
        })?;
        route
            .flatten()
            .ok_or_else(|| io::Error::other(format!("the kernel named no interface towards {destination}")))
    }

    /// Up to how many bytes the kernel puts received IPv6 packets together on an interface; `None` where it does not say.
    pub fn gro_max_size(&mut self, interface: u32) -> io::Result<Option<u32>> {
        let mut message = LinkMessage::default();
        message.header.index = interface;
        self.ask(RouteNetlinkMessage::GetLink(message), 0)?;
        let mut size = None;
        self.answers(false, |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                size = message.attributes.iter().find_map(|attribute| match attribute {
                    LinkAttribute::GroMaxSize(size) => Some(*size),
                    _ => None,
                });
            }
        })?;
        Ok(size)
    }

    /// Every interface.
    pub fn links(&mut self) -> io::Result<Vec<Interface>> {
        self.ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
        let mut links = Vec::new();
        self.answers(true, |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                links.push(read_interface(&message));
            }
        })?;
        Ok(links)
    }

    /// Every interface's and every neighbour's address.
    pub fn dump(&mut self, mut each: impl FnMut(Event)) -> io::Result<()> {
        self.ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
        self.answers(true, |answer| read_event(answer).into_iter().for_each(&mut each))?;
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = NeighbourMessage::default();
            message.header.family = family;
            self.ask(RouteNetlinkMessage::GetNeighbour(message), NLM_F_DUMP)?;
            self.answers(true, |answer| read_event(answer).into_iter().for_each(&mut each))?;
        }
        Ok(())
    }

    /// Asks for a change and waits until it is made.
    pub(super) fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.ask(message, NLM_F_ACK | flags)?;
        let received = self.socket.recv(&mut &mut self.buffer[..], 0)?;
        match Messages(&self.buffer[..received]).next().transpose()?.map(|message| message.payload) {
            Some(NetlinkPayload::Error(error)) if error.code.is_some() => Err(error.to_io()),
            Some(NetlinkPayload::Error(_)) => Ok(()),
            _ => Err(io::Error::other("the kernel has not said what has become of a change")),
        }
    }

    fn ask(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Reads answers: one, or all until the end of a dump.
    fn answers(&mut self, dump: bool, mut each: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
        loop {
            let received = self.socket.recv(&mut &mut self.buffer[..], 0)?;
            for message in Messages(&self.buffer[..received]) {
                match message?.payload {
                    NetlinkPayload::InnerMessage(message) => {
                        each(message);
                        if !dump {
                            return Ok(());
                        }
                    }
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }
}

/// A socket that hears of changes.
#[derive(Debug)]
pub struct Changes {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Changes {
    /// Subscribes. [`Changes::next`] returns without events after `patience`.
    pub fn subscribe(patience: Duration) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        socket2::SockRef::from(&socket).set_read_timeout(Some(patience))?;
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// Waits for changes and hands each to `each`.
    pub fn next(&mut self, mut each: impl FnMut(Event)) -> io::Result<()> {
        let received = match self.socket.recv(&mut &mut self.buffer[..], 0) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                each(Event::Overrun);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for message in Messages(&self.buffer[..received]) {
            if let NetlinkPayload::InnerMessage(message) = message?.payload {
                read_event(message).into_iter().for_each(&mut each);
            }
        }
        Ok(())
    }
}

/// The messages in one datagram.
struct Messages<'a>(&'a [u8]);

impl Iterator for Messages<'_> {
    type Item = io::Result<NetlinkMessage<RouteNetlinkMessage>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        match NetlinkMessage::deserialize(self.0) {
            Ok(message) => {
                let len = (message.header.length as usize).next_multiple_of(4);
                self.0 = self.0.get(len..).filter(|_| len > 0).unwrap_or_default();
                Some(Ok(message))
            }
            Err(error) => {
                self.0 = &[];
                Some(Err(io::Error::other(error)))
            }
        }
    }
}

fn read_route(message: &RouteMessage, destination: IpAddr) -> Option<Route> {
    let mut interface = None;
    let mut gateway = destination;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => gateway = (*address).into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(address))
            | RouteAttribute::Via(RouteVia::Inet6(address)) => gateway = (*address).into(),
            _ => {}
        }
    }
    interface.map(|interface| Route { interface, gateway })
}

fn read_event(message: RouteNetlinkMessage) -> Option<Event> {
    match message {
        RouteNetlinkMessage::NewNeighbour(message) => read_neighbour(&message, true),
        RouteNetlinkMessage::DelNeighbour(message) => read_neighbour(&message, false),
        RouteNetlinkMessage::NewLink(message) => {
            let mut link = Link::default();
            for attribute in &message.attributes {
                match attribute {
                    LinkAttribute::Address(bytes) => link.mac = Mac::try_from(bytes.as_slice()).ok(),
                    LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                    _ => {}
                }
            }
            Some(Event::Link { interface: message.header.index, link: Some(link) })
        }
        RouteNetlinkMessage::DelLink(message) => {
            Some(Event::Link { interface: message.header.index, link: None })
        }
        RouteNetlinkMessage::NewRoute(_) | RouteNetlinkMessage::DelRoute(_) => Some(Event::Routes),
        _ => None,
    }
}

fn read_interface(message: &LinkMessage) -> Interface {
    let mut interface = Interface {
        index: message.header.index,
        is_up: message.header.flags.contains(LinkFlags::Up),
        ..Interface::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => interface.mac = Mac::try_from(bytes.as_slice()).ok(),
            LinkAttribute::Link(index) => interface.below = Some(*index),
            LinkAttribute::LinkInfo(infos) => {
                interface.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    interface
}

fn read_neighbour(message: &NeighbourMessage, exists: bool) -> Option<Event> {
    let mut mac = None;
    let mut destination = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
                destination = Some((*address).into());
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
                destination = Some((*address).into());
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = Mac::try_from(bytes.as_slice()).ok(),
            _ => {}
        }
    }
    let usable = exists
        && matches!(
            message.header.state,
            NeighbourState::Reachable
                | NeighbourState::Stale
                | NeighbourState::Delay
                | NeighbourState::Probe
                | NeighbourState::Permanent
        );
    Some(Event::Neighbour {
        interface: message.header.ifindex,
        address: destination?,
        mac: mac.filter(|_| usable),
    })
}

/// The interface through which `destination` is reached; for an address of this host, the interface that carries it.
pub fn interface_towards(destination: IpAddr) -> io::Result<u32> {
    Netlink::open()?.route(destination).map(|route| route.interface)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn loopback_is_reached_through_lo() {
        let gateway = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(Netlink::open().unwrap().route(gateway).unwrap(), Route { interface: 1, gateway });
        // Hosts without IPv6 have no such address.
        if std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            let gateway = IpAddr::from(Ipv6Addr::LOCALHOST);
            assert_eq!(Netlink::open().unwrap().route(gateway).unwrap(), Route { interface: 1, gateway });
        }
    }

    #[test]
    fn a_dump_names_the_loopback_interface_and_its_mtu() {
        let mut links = Vec::new();
        let collect = |event| {
            if let Event::Link { interface, link: Some(link) } = event {
                links.push((interface, link.mtu));
            }
        };
        Netlink::open().unwrap().dump(collect).unwrap();
        assert!(links.iter().any(|(interface, mtu)| *interface == 1 && *mtu > 1_000), "{links:?}");
    }

    #[test]
    fn an_interface_tells_how_far_it_puts_packets_together() {
        // Kernels before 5.19 have no such limit.
        let size = Netlink::open().unwrap().gro_max_size(1).unwrap();
        assert!(size.is_none_or(|size| size > 0), "{size:?}");
    }
}
