//! Which program is attached where.

use aya::programs::TcAttachType;

/// A program, and where it is attached.
pub(super) struct Hook {
    pub program: &'static str,
    pub attach_type: TcAttachType,
    /// How links of it are called.
    pub name: &'static str,
    /// Only for Layer-4 listeners.
    pub layer4: bool,
}

/// In the order in which they are attached. Layer 4 stands beside the ingress of handed-off flows: no packet belongs to both, so their order on
/// the hook does not matter.
pub(super) const HOOKS: [Hook; 3] = [
    Hook { program: "router_ingress", attach_type: TcAttachType::Ingress, name: "ingress", layer4: false },
    Hook { program: "router_egress", attach_type: TcAttachType::Egress, name: "egress", layer4: false },
    Hook { program: "router_layer4", attach_type: TcAttachType::Ingress, name: "layer4", layer4: true },
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
