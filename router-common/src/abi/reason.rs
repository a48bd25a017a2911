//! Every reason for which a packet, a connection or a request is not simply carried on.
//!
//! Data path, metrics, log lines, `routerctl` and the documentation all read these lists, so a reason has one
//! name everywhere. Numbers of [`PacketReason`] are indexes into the per-CPU statistics map; append, never reorder.

macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $label:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            /// Every reason, in the order of its number.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];
            /// How many reasons there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name used in metrics, logs and the control protocol.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $label,)+ }
            }

            /// One sentence for an operator.
            pub const fn description(self) -> &'static str {
                match self { $($name::$variant => concat!($($doc),+),)+ }
            }

            /// The reason of a number; the first one if there is none.
            pub fn of(index: u32) -> Self {
                match Self::ALL.get(index as usize) {
                    Some(reason) => *reason,
                    None => Self::ALL[0],
                }
            }

            /// The number under which this reason is counted.
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

reasons! {
    /// Why the packet path did what it did with a packet.
    PacketReason {
        /// Translated and sent to the other side.
        Forwarded = "forwarded",
        /// No flow has this tuple; the stack decides.
        NoFlow = "no_flow",
        /// Neither IPv4 nor IPv6.
        NotIp = "not_ip",
        /// Not TCP.
        NotTcp = "not_tcp",
        /// Shorter than its headers say.
        Truncated = "truncated",
        /// An IPv4 header with options, or with an impossible length.
        IpOptions = "ip_options",
        /// A fragment without the ports that name its flow, and what has come of its datagram before does not tell it.
        Fragment = "fragment",
        /// A TCP header with an impossible data offset or malformed options.
        BadTcpOptions = "bad_tcp_options",
        /// A SYN on the tuple of a flow that has ended; the listener takes it.
        TupleReused = "tuple_reused",
        /// A pure acknowledgement of bytes in our socket's custody; our socket takes it.
        CustodyAck = "custody_ack",
        /// A retransmission of bytes that our socket has acknowledged and the other side has not.
        CustodyRetransmit = "custody_retransmit",
        /// A segment that starts inside the replaced head and ends behind it; the sender will send it again.
        StraddlesHead = "straddles_head",
        /// The flow's entry names a slot that is empty or belongs to another flow.
        StaleSlot = "stale_slot",
        /// The next hop has no link-layer address yet; the kernel resolves it.
        NextHopUnresolved = "next_hop_unresolved",
        /// The kernel refused a change to the packet.
        WriteFailed = "write_failed",
        /// A FIN or RST that this host's stack sent for a live flow whose daemon was killed; stopped on its way out.
        StrayEnding = "stray_ending",
        /// Carries a VLAN tag; the VLAN's own interface takes it.
        VlanTagged = "vlan_tagged",
        /// A TCP segment in a frame that is addressed to another host: overheard.
        OtherHost = "other_host",
        /// An IP packet in a frame to a group or to all: neighbour discovery, memberships and the like. Flows have none.
        Multicast = "multicast",
        /// An IPv6 packet with an extension header, other than that of a fragment, before TCP.
        ExtensionHeader = "extension_header",
        /// An ICMP error about a flow's packet, translated and sent on to who sent that packet.
        ErrorForwarded = "error_forwarded",
        /// An ICMP error about bytes of a flow that are not on their way: old, or forged.
        ErrorOutOfWindow = "error_out_of_window",
        /// An ICMP error about bytes in our socket's custody; our socket takes it.
        CustodyError = "custody_error",
        /// Longer than the MTU of its way out; its sender was told.
        TooLong = "too_long",
        /// The same, while as many senders had been told already as may be at a time.
        TooLongUnanswered = "too_long_unanswered",
        /// Of a Layer-4 flow, and sent to its instance.
        L4Forwarded = "l4_forwarded",
        /// From an instance of a Layer-4 flow, and sent to its client.
        L4Answered = "l4_answered",
        /// The first packet of a Layer-4 flow, which is placed and stored.
        L4Placed = "l4_placed",
        /// Sent to the instance that the ring names without a flow being stored: it ends a connection that is not known.
        L4Unstored = "l4_unstored",
        /// Sent to the instance that the ring names without a flow being stored: more flows begin than are stored.
        L4Flood = "l4_flood",
        /// The first packet of a flow that cannot go without being stored, while more flows begin than are stored.
        L4FloodDropped = "l4_flood_dropped",
        /// Sent to the instance that the ring names without a flow being stored: the table of Layer-4 flows is full.
        L4TableFull = "l4_table_full",
        /// The first packet of a flow that cannot go without being stored, while the table of Layer-4 flows is full.
        L4TableFullDropped = "l4_table_full_dropped",
        /// The first packet of a flow for whose answers no source port is free.
        L4NoSourcePort = "l4_no_source_port",
        /// From the middle of a Layer-4 flow that is not known; the stack answers with a reset.
        L4NoFlow = "l4_no_flow",
        /// To a Layer-4 listener that is gone and has no such flow any more.
        L4NoService = "l4_no_service",
        /// The first packet of a flow from a client that a rule refuses.
        L4Denied = "l4_denied",
        /// The first packet of a flow for which there is no instance.
        L4Unavailable = "l4_unavailable",
        /// Of a Layer-4 flow whose instance is down; the stack answers with a reset.
        L4InstanceDown = "l4_instance_down",
        /// No way towards the instance is known.
        L4NoRoute = "l4_no_route",
        /// An ICMP error about a Layer-4 flow's packet, sent on to who sent that packet.
        L4ErrorForwarded = "l4_error_forwarded",
        /// Changed by XDP already when the neighbour's address or the interface was lost.
        XdpWayLost = "xdp_way_lost",
        /// A later fragment to a Layer-4 VIP whose datagram's first fragment has not come before it.
        L4FragmentUnknown = "l4_fragment_unknown",
        /// An echo request (ping) to a Layer-4 VIP, answered.
        L4EchoAnswered = "l4_echo_answered",
        /// An echo request to a Layer-4 VIP none of whose listeners has an instance that takes new flows: no answer.
        L4EchoUnavailable = "l4_echo_unavailable",
        /// An echo request to a Layer-4 VIP with a wrong checksum, or from an address that cannot be answered.
        L4EchoMalformed = "l4_echo_malformed",
        /// An echo request to a Layer-4 VIP in fragments, or longer than 9,216 bytes; the stack takes it.
        L4EchoTooLong = "l4_echo_too_long",
        /// Of a flow whose instance has not answered yet; the program of delayed binding takes it.
        Binding = "binding",
        /// A SYN that was answered with a cookie.
        BindingSynAnswered = "binding_syn_answered",
        /// The handshake of a client is complete; its first packet will follow.
        BindingOpened = "binding_opened",
        /// A segment of what a client sends first, which the daemon got. It is not acknowledged until an instance has it.
        BindingTaken = "binding_taken",
        /// The instance's answer to our SYN, which became what the client has sent first.
        Bound = "bound",
        /// What the client has sent first was sent to the instance once more.
        BindingResent = "binding_resent",
        /// What the daemon has already, from a client whose instance has not answered; the client sends it again.
        BindingHeld = "binding_held",
        /// The instance refused the connection; the daemon chooses another.
        BindingRefused = "binding_refused",
        /// The client closed, or reset, before it sent anything.
        BindingClosed = "binding_closed",
        /// A keep-alive before the first packet, which was answered.
        BindingKeptAlive = "binding_kept_alive",
        /// From a client that is not bound yet: outside the window that it was given, or ahead of the packet by which its cookie can be checked; the client sends it again.
        BindingOutOfOrder = "binding_out_of_order",
        /// A first packet longer than the window that the client was given.
        BindingTooLong = "binding_too_long",
        /// The daemon is behind with what the programs tell it; the client sends it again.
        BindingRingFull = "binding_ring_full",
        /// To a listener whose daemon takes no first packets now; the stack decides.
        BindingUnattended = "binding_unattended",
        /// A SYN with data (TCP Fast Open); the listening socket takes it.
        BindingSynWithData = "binding_syn_with_data",
        /// A FIN or a reset of a Layer-4 flow whose number does not fit the flow: sent on for its receiver to judge, and the flow stays as it is.
        L4EndingOutOfWindow = "l4_ending_out_of_window",
        /// Acknowledges nothing that was sent; whoever sent it was reset (RFC 9293 §3.10.7.1).
        BindingBadCookie = "binding_bad_cookie",
        /// A router between here and an instance with `dsr-ipip` told an MTU: noted, and clients are told when they exceed it.
        L4TunnelMtu = "l4_tunnel_mtu",
        /// Any other ICMP error about a packet that was wrapped for an instance (`dsr-ipip`); the stack gets it.
        L4TunnelError = "l4_tunnel_error",
        /// An ICMP error that tells an MTU, about a packet that this host has not wrapped so.
        L4TunnelErrorForged = "l4_tunnel_error_forged",
        /// What a client sends first comes in more segments than are put together; it gets a socket.
        BindingTooMany = "binding_too_many",
        /// The instance takes smaller segments, or less, than was laid out for it; the client gets a socket.
        BindingUnfit = "binding_unfit",
    }
}

reasons! {
    /// What XDP did with a frame, or why it left it, unchanged, to the stack and the TC programs. (Packets are counted by [`PacketReason`] as well, by whoever decides.)
    XdpReason {
        /// Changed and sent on, past the stack.
        Carried = "carried",
        /// Dropped.
        Dropped = "dropped",
        /// Left to the stack: no packet of a flow that goes straight on.
        NotCarried = "not_carried",
        /// Left to the stack: the next hop's link-layer address is not known, or its interface does not send what XDP gives to it.
        NoWayOut = "no_way_out",
        /// Left to the stack: longer than the MTU of its way out, put together from packets, or its sender is to be told.
        TooLong = "too_long",
        /// Left to the stack: its checksum was left to a network card, which XDP cannot pass on.
        PartialChecksum = "partial_checksum",
    }
}

reasons! {
    /// Why a connection is relayed in user space instead of being handed off.
    RelayReason {
        /// The listener says `offload = "relay"`.
        Configured = "configured",
        /// Too short to be worth a handoff: it ended before any trigger was met.
        Short = "short",
        /// No kernel data path is loaded.
        NoDatapath = "no_datapath",
        /// None of the router's source ports towards the instance is free.
        NoSourcePort = "no_source_port",
        /// The flow table has no free slot.
        TableFull = "table_full",
        /// A flow with one of these tuples exists already.
        DuplicateKey = "duplicate_key",
        /// The two sockets differ in an option that packets cannot be translated across.
        OptionMismatch = "option_mismatch",
        /// One side had already closed its direction.
        HalfClosed = "half_closed",
        /// Too many bytes were in custody: acknowledged by us and not yet by the other side.
        Custody = "custody",
        /// One side has been permitted to send more than the other side takes.
        Window = "window",
        /// No route or next hop towards a peer is known.
        NoRoute = "no_route",
        /// One leg is IPv4 and the other IPv6: packets cannot be translated between them.
        Family = "family",
        /// The kernel refused access to socket state.
        SocketState = "socket_state",
        /// A map update failed.
        MapUpdate = "map_update",
        /// A peer is on this host, or behind an interface that the kernel programs are not attached to.
        NotAttached = "not_attached",
        /// The listener says `once_only = false`: every request is routed, so every byte passes through user space.
        PerRequest = "per_request",
        /// An end has a link-local address, which means nothing without its interface.
        LinkLocal = "link_local",
    }
}

reasons! {
    /// Why a connection that began without a socket was given one, instead of being bound to an instance.
    UnboundReason {
        /// The head, or ClientHello, does not end within the client's initial window, or its rest does not follow at once.
        HeadIncomplete = "head_incomplete",
        /// What the instance is to get does not fit as many packets as are laid out for it.
        HeadTooLong = "head_too_long",
        /// The head, or ClientHello, is to be refused.
        BadHead = "bad_head",
        /// The client closed its direction with its first packet.
        Finished = "finished",
        /// The rules name no instance now: the request is to be answered, or to wait.
        NoInstance = "no_instance",
        /// The response is to carry a cookie.
        Cookie = "cookie",
        /// No instance that was tried could be connected to.
        ConnectFailed = "connect_failed",
        /// None of the router's source ports towards the instance is free.
        NoSourcePort = "no_source_port",
        /// The flow table has no free slot.
        TableFull = "table_full",
        /// A flow with one of these tuples exists already.
        DuplicateKey = "duplicate_key",
        /// As many first packets as may wait for instances were waiting already.
        NoStash = "no_stash",
        /// No way towards the client or the instance is known, or none that the kernel programs see.
        NoRoute = "no_route",
        /// The link-layer address of the way to the instance is not known yet.
        NextHopUnresolved = "next_hop_unresolved",
        /// The client is IPv4 and the instance IPv6, or the other way round.
        Family = "family",
        /// A map update failed.
        MapUpdate = "map_update",
        /// The listener's settings do not permit it any more.
        Configured = "configured",
        /// As many unfinished heads as may be put together, of this client or of all, were there already.
        TooManyHeads = "too_many_heads",
        /// The instance takes smaller segments, or less at once, than it was to get.
        InstanceUnfit = "instance_unfit",
    }
}

reasons! {
    /// Why a connection or a request was refused, answered by the router itself, or closed.
    RefuseReason {
        /// The head breaks HTTP/1 syntax or is ambiguous between servers.
        BadRequest = "bad_request",
        /// Raw and normalised path would select different rules.
        AmbiguousPath = "ambiguous_path",
        /// CONNECT, authority-form or `*` outside OPTIONS.
        MethodNotAllowed = "method_not_allowed",
        /// The head did not arrive before the deadline.
        HeaderTimeout = "header_timeout",
        /// The request target is longer than 8 KiB.
        UriTooLong = "uri_too_long",
        /// The head is longer than the limit or has too many fields.
        HeadTooLarge = "head_too_large",
        /// The HTTP/2 connection preface on an HTTP/1 listener.
        Http2Preface = "http2_preface",
        /// A TLS handshake on an HTTP listener.
        TlsOnHttp = "tls_on_http",
        /// An HTTP request on a TLS listener.
        HttpOnTls = "http_on_tls",
        /// On a TLS listener, what came first is not a well-formed ClientHello.
        BadClientHello = "bad_client_hello",
        /// The ClientHello names several servers, or one by other characters than those of host names.
        BadServerName = "bad_server_name",
        /// A proxy that must announce its clients (PROXY protocol) did not.
        ProxyHeaderMissing = "proxy_header_missing",
        /// A PROXY protocol header that is malformed or too long.
        BadProxyHeader = "bad_proxy_header",
        /// A PROXY protocol header from somebody who is not to announce clients, or a second one.
        ProxyHeaderUnexpected = "proxy_header_unexpected",
        /// HTTP/0.9, which the listener does not allow.
        Http09 = "http_0_9",
        /// A version other than HTTP/1.0 and HTTP/1.1.
        HttpVersion = "http_version",
        /// `Upgrade: h2c`.
        H2cUpgrade = "h2c_upgrade",
        /// More requests behind the first, which the listener does not allow.
        Pipelined = "pipelined",
        /// The client closed or reset before its head was complete.
        ClientGone = "client_gone",
        /// A rule refuses this request.
        Denied = "denied",
        /// No instance of the selected pool can serve.
        Unavailable = "unavailable",
        /// Every instance that was tried refused the connection or timed out.
        ConnectFailed = "connect_failed",
        /// Too many heads are being read at once, in all or from this client.
        TooManyHeads = "too_many_heads",
        /// The instance closed or reset the connection before the first byte of its response.
        NoResponse = "no_response",
        /// No source port is free towards the instance.
        NoSourcePort = "no_source_port",
        /// Too many open files or not enough memory.
        OutOfResources = "out_of_resources",
        /// As many requests as may wait for an instance were waiting already.
        QueueFull = "queue_full",
        /// No instance freed while the request waited.
        QueueTimeout = "queue_timeout",
        /// The instance sent no response before the idle time-out.
        ResponseTimeout = "response_timeout",
    }
}

reasons! {
    /// What became of a persistence cookie.
    CookieEvent {
        /// It named an instance, and the request went there.
        Honoured = "honoured",
        /// Ignored: not made with one of the keys, or cut short.
        Forged = "forged",
        /// Ignored: of another generation.
        Generation = "generation",
        /// Ignored: older than its age, or from the future.
        Expired = "expired",
        /// Ignored: its instance is not, or no longer, in the rule's pool.
        UnknownInstance = "unknown_instance",
        /// Ignored: its instance may not serve.
        CannotServe = "cannot_serve",
        /// A new one was put into a response.
        Inserted = "inserted",
        /// A new one could not be put into a response: it did not begin with a complete HTTP/1 head of at most 64 KiB.
        NoResponseHead = "no_response_head",
        /// A new one could not be made: the kernel gave no random numbers.
        NoRandomNumbers = "no_random_numbers",
    }
}

reasons! {
    /// What became of an interim response (1xx) where each request is routed by itself.
    InterimEvent {
        /// It went on to the client.
        Forwarded = "forwarded",
        /// Dropped: the client speaks HTTP/1.0, which has none.
        OldClient = "old_client",
        /// Dropped: the client has not read the ones before.
        ClientBehind = "client_behind",
    }
}

reasons! {
    /// Why the control server closed a client's connection.
    ControlReason {
        /// Every place was taken by a client that was being answered or had only just connected.
        TurnedAway = "turned_away",
        /// The connection had been idle longest when another client needed a place.
        MadeRoom = "made_room",
        /// No complete head arrived before the deadline.
        HeadTimeout = "head_timeout",
        /// The client took nothing of its answer before the deadline.
        AnswerUnread = "answer_unread",
        /// The head is not HTTP/1 or is too long.
        BadHead = "bad_head",
        /// The client closed or reset in the middle of a request or of its answer.
        ClientGone = "client_gone",
    }
}

reasons! {
    /// Why a report of an instance was refused.
    ReportReason {
        /// Not `POST /v1/report`.
        NotAReport = "not_a_report",
        /// No bearer token in `Authorization`.
        NoToken = "no_token",
        /// The token is not one of any pool.
        WrongToken = "wrong_token",
        /// The body is too long.
        TooLarge = "too_large",
        /// The body is not JSON, lacks the instance, or has a field that is not known.
        Malformed = "malformed",
        /// A value that cannot be, or is in another unit.
        OutOfRange = "out_of_range",
        /// The report says that it was made in the future: the instance's clock is wrong.
        FutureClock = "future_clock",
        /// The report says that it was made longer ago than reports count.
        TooOld = "too_old",
        /// No pool with this token has this instance, and the pool does not let instances join.
        UnknownInstance = "unknown_instance",
        /// The instance cannot join: its name or address is taken or unusable.
        RegistrationConflict = "registration_conflict",
        /// As many instances as may have joined the pool already.
        RegistryFull = "registry_full",
    }
}

impl From<RelayReason> for UnboundReason {
    fn from(reason: RelayReason) -> Self {
        match reason {
            RelayReason::TableFull => Self::TableFull,
            RelayReason::DuplicateKey => Self::DuplicateKey,
            RelayReason::NoSourcePort => Self::NoSourcePort,
            RelayReason::Family | RelayReason::LinkLocal => Self::Family,
            RelayReason::NoRoute | RelayReason::NotAttached => Self::NoRoute,
            _ => Self::MapUpdate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_numbers_follow_the_order() {
        for (number, reason) in PacketReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), number);
            assert!(!reason.description().is_empty());
            assert_eq!(PacketReason::ALL.iter().filter(|other| other.name() == reason.name()).count(), 1);
        }
    }
}
