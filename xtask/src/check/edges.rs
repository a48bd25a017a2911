//! Where `unsafe` may stand: at the edges of the house, where something outside of Rust is met.

use super::Finding;
use super::source::Source;

/// Files and directories that meet something unsafe, and what it is.
const EDGES: [(&str, &str); 14] = [
    ("router-ebpf/src", "BPF helpers, maps and packets"),
    ("router-common/src/abi", "types that lie in memory shared with the kernel"),
    ("router-common/src/wire", "headers read in place"),
    ("router-common/src/path", "headers read in place, and volatile access that the verifier needs"),
    ("router-userspace/src/flows", "BPF, mapped memory and socket repair"),
    ("router-userspace/src/proxy/bind/mod.rs", "registering the ring of first packets"),
    ("router-userspace/src/proxy/buffer.rs", "reading into spare capacity"),
    ("router-userspace/src/proxy/endpoint.rs", "reading into spare capacity"),
    ("router-userspace/src/proxy/listener.rs", "registering a listening socket"),
    ("router-userspace/src/proxy/sockopt.rs", "socket options"),
    ("router-userspace/tests/core/allocation.rs", "an allocator that counts"),
    ("tests/support", "namespaces and signals"),
    ("xtask/src/bench/meter.rs", "the length of a clock tick"),
    ("xtask/src/workspace.rs", "the user's identity, and signals"),
];

/// `unsafe` anywhere else.
pub fn unsafe_code(source: &Source) -> Vec<Finding> {
    if EDGES.iter().any(|(edge, _)| source.path.starts_with(edge)) {
        return Vec::new();
    }
    let text = "`unsafe` stands at the edges of the house only; xtask/src/check/edges.rs lists them";
    source.lines_with("unsafe").map(|line| source.finding(line, text)).collect()
}

/// Edges that meet nothing unsafe any more.
pub fn without_need(sources: &[Source]) -> Vec<Finding> {
    let is_needed = |edge: &str| {
        let inside = sources.iter().filter(|source| source.path.starts_with(edge));
        inside.flat_map(|source| source.lines_with("unsafe")).next().is_some()
    };
    let unused = EDGES.iter().filter(|(edge, _)| !is_needed(edge));
    let finding = |(edge, _): &(&str, _)| {
        let text = "has no `unsafe` and need not be listed in xtask/src/check/edges.rs";
        Finding { path: edge.into(), line: 1, text: text.to_owned() }
    };
    unused.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_is_found_inside_of_the_house_only() {
        let text = "// unsafe\nfn f() { unsafe { g() } }";
        let found = |path: &str| unsafe_code(&Source::new(path, text).unwrap()).len();
        assert_eq!(found("router-userspace/src/core/pool.rs"), 1);
        assert_eq!(found("router-userspace/src/proxy/relay.rs"), 1);
        assert_eq!(found("router-userspace/src/flows/kernel.rs"), 0);
    }

    #[test]
    fn an_edge_without_unsafe_is_found() {
        let harmless = EDGES.map(|(edge, _)| Source::new(edge, "fn f() {}").unwrap());
        assert_eq!(without_need(&harmless).len(), EDGES.len());
        let needed = EDGES.map(|(edge, _)| Source::new(edge, "unsafe fn f() {}").unwrap());
        assert_eq!(without_need(&needed), Vec::new());
    }
}
