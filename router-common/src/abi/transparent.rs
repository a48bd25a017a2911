//! What marks packets that are for sockets of this host though they bear a client's address (`source = "transparent"`).

/// The mark (`SO_MARK`, fwmark) by which the host's routing delivers them here: "rout" in ASCII.
pub const MARK: u32 = 0x726f_7574;
