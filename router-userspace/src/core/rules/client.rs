//! What a condition says where nothing but the client's address is known: on a listener below HTTP and TLS.
//!
//! A function that asks for what such a listener never sees never holds there, as everywhere (see [`possible`](super::possible)). What
//! remains are `ClientIP`, `Listener` and `Any` in any combination.

use ipnet::IpNet;

use super::Match;
use super::expression::{Call, Expression};
use super::functions;

/// A condition on the client's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCondition {
    Always(bool),
    /// The address lies in one of these networks.
    Within(Vec<IpNet>),
    Not(Box<ClientCondition>),
    All(Vec<ClientCondition>),
    Any(Vec<ClientCondition>),
}

impl Match {
    /// The condition as clients of `listener` meet it.
    pub fn by_client(&self, listener: &str) -> ClientCondition {
        reduce(&self.expression, listener)
    }
}

fn reduce(expression: &Expression, listener: &str) -> ClientCondition {
    match expression {
        Expression::Call(call) => known(call, listener),
        Expression::Not(part, _) => match reduce(part, listener) {
            ClientCondition::Always(holds) => ClientCondition::Always(!holds),
            other => ClientCondition::Not(Box::new(other)),
        },
        Expression::All(parts, _) => chain(parts, listener, false, ClientCondition::All),
        Expression::Any(parts, _) => chain(parts, listener, true, ClientCondition::Any),
    }
}

fn known(call: &Call, listener: &str) -> ClientCondition {
    match call.name.as_str() {
        "Any" => ClientCondition::Always(true),
        "Listener" => ClientCondition::Always(call.arguments.iter().any(|name| name.value == listener)),
        "ClientIP" => {
            functions::networks(call).map_or(ClientCondition::Always(false), ClientCondition::Within)
        }
        _ => ClientCondition::Always(false),
    }
}

/// `settles` is what one part alone settles the chain with.
fn chain(
    parts: &[Expression],
    listener: &str,
    settles: bool,
    join: fn(Vec<ClientCondition>) -> ClientCondition,
) -> ClientCondition {
    let mut left: Vec<_> = parts.iter().map(|part| reduce(part, listener)).collect();
    if left.contains(&ClientCondition::Always(settles)) {
        return ClientCondition::Always(settles);
    }
    left.retain(|part| *part != ClientCondition::Always(!settles));
    if left.is_empty() { ClientCondition::Always(!settles) } else { join(left) }
}

impl ClientCondition {
    /// Whether it holds for the addresses of `network` that lie in no smaller network that the condition names.
    pub fn holds(&self, network: &IpNet) -> bool {
        match self {
            Self::Always(holds) => *holds,
            Self::Within(networks) => networks.iter().any(|outer| outer.contains(network)),
            Self::Not(part) => !part.holds(network),
            Self::All(parts) => parts.iter().all(|part| part.holds(network)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(network)),
        }
    }

    /// The networks that it names.
    pub fn networks(&self) -> Vec<IpNet> {
        match self {
            Self::Always(_) => Vec::new(),
            Self::Within(networks) => networks.clone(),
            Self::Not(part) => part.networks(),
            Self::All(parts) | Self::Any(parts) => parts.iter().flat_map(Self::networks).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::rules::compile;

    fn by_client(source: &str) -> ClientCondition {
        compile(source).unwrap().by_client("dns")
    }

    #[test]
    fn what_only_a_request_has_never_holds() {
        let never = ClientCondition::Always(false);
        assert_eq!(by_client("PathPrefix(\"/a\")"), never);
        assert_eq!(by_client("ClientIP(\"10.0.0.0/8\") && HostSNI(\"a.example\")"), never);
        assert_eq!(by_client("!Host(\"a.example\")"), ClientCondition::Always(true));
        assert_eq!(by_client("Listener(\"web\") && Host(\"a.example\")"), never);
        assert_eq!(by_client("Listener(\"dns\") || Host(\"a.example\")"), ClientCondition::Always(true));
        assert!(
            by_client("ClientIP(\"10.0.0.0/8\") || Host(\"a.example\")")
                .holds(&"10.1.0.0/16".parse().unwrap())
        );
    }

    #[test]
    fn combinations_of_networks_have_an_answer_for_every_network() {
        let condition =
            by_client("Listener(\"dns\") && ClientIP(\"10.0.0.0/8\") && !ClientIP(\"10.9.0.0/16\")");
        let holds = |network: &str| condition.holds(&network.parse().unwrap());
        assert!(!holds("0.0.0.0/0"));
        assert!(holds("10.0.0.0/8"));
        assert!(!holds("10.9.0.0/16"));
        assert_eq!(condition.networks().len(), 2);
    }
}
