//! Listeners: unique names, and addresses that do not overlap.

use std::net::SocketAddr;

use super::super::file::{File, Listener};
use super::super::reader::{Placed, Report};
use super::super::report::Problem;
use super::super::settings::{Offload, Protocol, Source};
use super::ListenerPlan;
use super::unique::Unique;

/// Each listener is a socket for each worker; and comparing addresses takes the square of their number.
const MAX_LISTENERS: usize = 1_024;

pub(super) fn check(file: &File, report: &Report<'_>) {
    let mut names = Unique::new(report);
    for name in file.listeners.iter().filter_map(|listener| listener.name.as_ref()) {
        names.see(name, |name| {
            (format!("two listeners are named `{name}`"), "give each listener its own name".to_owned())
        });
    }
    if let Some(listener) = file.listeners.get(MAX_LISTENERS) {
        report.add(Problem::at(listener.span.clone(), format!("more than {MAX_LISTENERS} listeners")));
        return;
    }
    for listener in &file.listeners {
        if listener.allow_http09.value && !listener.once_only.value {
            let message = "`allow_http09` does not go together with `once_only = false`".to_owned();
            let problem = Problem::at(listener.allow_http09.span.clone(), message)
                .help("HTTP/0.9 has one request on a connection: leave one of the two out");
            report.add(problem.earlier(listener.once_only.span.clone(), "every request is routed"));
        }
    }
    for listener in &file.listeners {
        check_binding(listener, report);
    }
    let transports: Vec<(&Placed<SocketAddr>, bool)> = file
        .listeners
        .iter()
        .filter_map(|listener| Some((listener.address.as_ref()?, listener.protocol.value == Protocol::Udp)))
        .collect();
    for (number, (address, udp)) in transports.iter().enumerate() {
        // The ports of UDP and TCP are different ports.
        let same = |(earlier, other): &&(&Placed<SocketAddr>, bool)| {
            other == udp && overlap(earlier.value, address.value)
        };
        if let Some((earlier, _)) = transports[..number].iter().find(same) {
            let message = format!("listener address {} is already listened on", address.value);
            let problem = Problem::at(address.span.clone(), message)
                .help("use another address or port; 0.0.0.0 and [::] cover every address of their family");
            report.add(problem.earlier(earlier.span.clone(), "by this listener"));
        }
    }
    let addresses: Vec<&Placed<SocketAddr>> =
        transports.iter().filter(|(_, udp)| !udp).map(|(address, _)| *address).collect();
    let admin = file.daemon.admin_listen.as_ref();
    let reports = file.reports.as_ref().and_then(|reports| reports.listen.as_ref());
    for (key, own) in [("admin_listen", admin), ("listen", reports)] {
        if let Some(own) = own
            && let Some(listener) = addresses.iter().find(|listener| overlap(listener.value, own.value))
        {
            let message = format!("`{key}` {} is the address of a listener", own.value);
            let problem = Problem::at(own.span.clone(), message).help("use another port");
            report.add(problem.earlier(listener.span.clone(), "this listener"));
        }
    }
    if let (Some(admin), Some(reports)) = (admin, reports)
        && overlap(admin.value, reports.value)
    {
        let message = format!("`listen` {} is the address of `admin_listen`", reports.value);
        let problem = Problem::at(reports.span.clone(), message).help("use another port");
        report.add(problem.earlier(admin.span.clone(), "this address"));
    }
}

/// What binds connections answers for one address, and lets go of them behind their first request.
fn check_binding(listener: &Listener, report: &Report<'_>) {
    if listener.offload.value != Offload::Bind {
        return;
    }
    let refuse = |message: &str, help: &str| {
        Problem::at(listener.offload.span.clone(), message.to_owned()).help(help.to_owned())
    };
    if let Some(address) = &listener.address
        && address.value.ip().is_unspecified()
    {
        let problem = refuse(
            "`offload = \"bind\"` does not go together with an address that covers all of a family",
            "give each address a listener of its own, or use `offload = \"auto\"`",
        );
        report.add(problem.earlier(address.span.clone(), "any address"));
    }
    if !listener.once_only.value {
        let problem = refuse(
            "`offload = \"bind\"` does not go together with `once_only = false`",
            "only the first request passes the daemon: leave one of the two out",
        );
        report.add(problem.earlier(listener.once_only.span.clone(), "every request is routed"));
    }
    if listener.source.value == Source::Transparent {
        let problem = refuse(
            "`offload = \"bind\"` does not go together with `source = \"transparent\"`",
            "use `offload = \"auto\"`, or `\"handoff\"`",
        );
        report.add(problem.earlier(listener.source.span.clone(), "clients keep their addresses"));
    }
    if let Some(from) = &listener.announced_by {
        let problem = refuse(
            "`offload = \"bind\"` does not go together with `accept_proxy_protocol`",
            "use `offload = \"auto\"`, or `\"handoff\"`",
        );
        report.add(problem.earlier(from.span.clone(), "connections begin with a header"));
    }
}

/// Whether two sockets could not both listen. A wildcard covers its own family: IPv6 listeners are IPv6 only.
pub(super) fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port()
        && a.is_ipv4() == b.is_ipv4()
        && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

/// The longest ClientHello by default; as long as one record may be (RFC 8446 §5.1).
const MAX_CLIENT_HELLO: u32 = 16 * 1024;

pub(super) fn plan(listener: &Listener) -> Option<ListenerPlan> {
    Some(ListenerPlan {
        name: listener.name.as_ref()?.value.clone(),
        address: listener.address.as_ref()?.value,
        protocol: listener.protocol.value,
        source: listener.source.value,
        echo: listener.echo.value,
        offload: listener.offload.value,
        offload_after_bytes: listener.offload_after_bytes.value,
        offload_after: listener.offload_after.value,
        offload_second_request: listener.offload_second_request.value,
        once_only: listener.once_only.value,
        header_timeout: listener.header_timeout.value,
        max_header_bytes: match listener.protocol.value {
            Protocol::Tls if !listener.max_header_bytes.written => MAX_CLIENT_HELLO,
            _ => listener.max_header_bytes.value,
        },
        forwarded_for: listener.forwarded_for.value,
        allow_http09: listener.allow_http09.value,
        pipelining: listener.pipelining.value,
        connect_timeout: listener.connect_timeout.value,
        connect_retries: listener.connect_retries.value,
        idle_timeout: listener.idle_timeout.value,
        half_closed_timeout: listener.half_closed_timeout.value,
        retry_after: listener.retry_after.value,
        backlog: listener.backlog.value,
        defer_accept: listener.defer_accept.value,
        max_segment: listener.max_segment.as_ref().map(|size| size.value),
        initial_window: listener.initial_window.value,
        accept_proxy_protocol: listener
            .announced_by
            .as_ref()
            .map_or_else(Vec::new, |from| from.value.clone()),
        client_affinity: super::balance::affinity(listener),
    })
}
