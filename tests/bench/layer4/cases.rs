//! What is measured, and how cheap it is to be.

use router_common::abi::balance::Mode;
use router_common::abi::reason::PacketReason;
use support::restoring::Hook;

use crate::tables::Family;

/// What a frame meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meets {
    /// The flow of its client; so many have one, and take turns.
    Flow { among: u32 },
    /// Comes from an instance, and meets the flow that it answers.
    Answered,
    /// No flow, and it does not begin one: the Maglev table alone tells where it goes.
    Maglev,
    /// No flow, and it begins one, which is stored.
    NewFlow,
    /// A flood of SYNs, each from another address, with the limit of stored flows that the daemon has by default.
    Flood { sources: u32 },
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub meets: Meets,
    pub mode: Mode,
    pub family: Family,
    /// ns that it may cost.
    pub limit: Option<u32>,
    /// What Katran was measured to cost in the same way, in ns.
    pub katran: Option<&'static str>,
}

pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Snat => "snat",
        Mode::Transparent => "transparent",
        Mode::DsrL2 => "dsr-l2",
        Mode::DsrIpip => "dsr-ipip",
    }
}

impl Case {
    pub fn name(&self) -> String {
        let mode = mode_name(self.mode);
        match self.meets {
            Meets::Flow { among: 1 } => format!("flow hit, {mode}"),
            Meets::Flow { among } => format!("flow hit among {} 000, {mode}", among / 1000),
            Meets::Answered => format!("answer, {mode}"),
            Meets::Maglev => format!("Maglev table alone, {mode}"),
            Meets::NewFlow => format!("new flow stored, {mode}"),
            Meets::Flood { sources } if sources >= 1_000_000 => {
                format!("SYN flood from {} million addresses, {mode}", sources / 1_000_000)
            }
            Meets::Flood { sources } => format!("SYN flood from {sources} addresses, {mode}"),
        }
    }

    /// What may become of its frames.
    pub fn reasons(&self) -> &'static [PacketReason] {
        match self.meets {
            Meets::Flow { .. } => &[PacketReason::L4Forwarded],
            Meets::Answered => &[PacketReason::L4Answered],
            Meets::Maglev => &[PacketReason::L4Unstored],
            Meets::NewFlow => &[PacketReason::L4Placed],
            Meets::Flood { .. } => {
                &[PacketReason::L4Flood, PacketReason::L4Placed, PacketReason::L4TableFull]
            }
        }
    }

    /// The kernel wraps a packet of TC once in its life: only a packet made anew can be wrapped again.
    pub fn wants_new_packets(&self, hook: Hook) -> bool {
        hook == Hook::Tc && self.mode == Mode::DsrIpip
    }

    /// A flood takes long: it meets each hook once.
    pub fn runs_at(&self, hook: Hook) -> bool {
        let wrapped = if self.mode == Mode::DsrIpip { Hook::Xdp } else { Hook::Tc };
        !matches!(self.meets, Meets::Flood { .. }) || hook == wrapped
    }
}

/// All of them; `flood` is the number of addresses that a flood comes from.
pub fn all(flood: u32) -> Vec<Case> {
    let case = |meets, mode, family| Case { meets, mode, family, limit: None, katran: None };
    let mut cases = Vec::new();
    for family in Family::BOTH {
        for mode in [Mode::Snat, Mode::Transparent, Mode::DsrL2, Mode::DsrIpip] {
            let hit = case(Meets::Flow { among: 1 }, mode, family);
            cases.push(match mode {
                Mode::Snat => Case { limit: Some(130), ..hit },
                Mode::DsrIpip => Case { limit: Some(100), katran: Some("126–134"), ..hit },
                _ => hit,
            });
        }
        cases.push(case(Meets::Answered, Mode::Snat, family));
        cases.push(case(Meets::Maglev, Mode::DsrL2, family));
        let placed = case(Meets::Maglev, Mode::DsrIpip, family);
        cases.push(Case { limit: Some(135), katran: Some("135–139"), ..placed });
    }
    cases.extend([
        case(Meets::NewFlow, Mode::DsrL2, Family::V4),
        case(Meets::NewFlow, Mode::Snat, Family::V4),
        case(Meets::NewFlow, Mode::DsrL2, Family::V6),
        case(Meets::Flow { among: 100_000 }, Mode::Snat, Family::V4),
        case(Meets::Flow { among: 100_000 }, Mode::DsrIpip, Family::V4),
        case(Meets::Flow { among: 500_000 }, Mode::Snat, Family::V4),
        case(Meets::Flow { among: 500_000 }, Mode::DsrIpip, Family::V4),
        case(Meets::Flood { sources: flood }, Mode::DsrL2, Family::V4),
        Case { katran: Some("143"), ..case(Meets::Flood { sources: flood }, Mode::DsrIpip, Family::V4) },
    ]);
    cases
}
