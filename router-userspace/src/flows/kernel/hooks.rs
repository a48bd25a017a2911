//! Which program is attached where.

use aya::programs::TcAttachType;

/// A program, and where it is attached.
pub(super) struct Hook {
    pub program: &'static str,
    pub attach_type: TcAttachType,
    /// How links of it are called.
    pub name: &'static str,
    pub wanted: Wanted,
}

/// Which hosts a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Always,
    ForLayer4,
    /// Where listeners' connections are bound.
    ForBinding,
}

/// In the order in which they are attached. Layer 4 stands beside the ingress of handed-off flows: no packet belongs to both, so their order on
/// the hook does not matter. What begins connections gets what the ingress of flows leaves.
pub(super) const HOOKS: [Hook; 4] = [
    Hook {
        program: "router_ingress",
        attach_type: TcAttachType::Ingress,
        name: "ingress",
        wanted: Wanted::Always,
    },
    Hook {
        program: "router_egress",
        attach_type: TcAttachType::Egress,
        name: "egress",
        wanted: Wanted::Always,
    },
    Hook {
        program: "router_layer4",
        attach_type: TcAttachType::Ingress,
        name: "layer4",
        wanted: Wanted::ForLayer4,
    },
    Hook {
        program: "router_binding",
        attach_type: TcAttachType::Ingress,
        name: "binding",
        wanted: Wanted::ForBinding,
    },
];

impl Hook {
    /// Interface names hold neither `/` nor `:`, so the name is unique.
    pub fn link(&self, interface: &str) -> String {
        format!("{}:{interface}", self.name)
    }

    pub fn is_ingress(&self) -> bool {
        matches!(self.attach_type, TcAttachType::Ingress)
    }
}
