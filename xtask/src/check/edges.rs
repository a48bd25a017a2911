//! Where `unsafe` may stand: at the edges of the house, where something outside of Rust is met.

use super::Finding;
use super::source::Source;

/// Files and directories that meet something unsafe, and what it is.
const EDGES: [(&str, &str); 10] = [
    ("router-ebpf/src/", "BPF helpers, maps and packets"),
    ("router-common/src/abi/", "types that lie in memory shared with the kernel"),
    ("router-common/src/wire/", "headers read in place"),
    ("router-common/src/path/", "volatile reads that the verifier needs"),
    ("router-userspace/src/flows/", "BPF, mapped memory and socket options"),
    ("router-userspace/src/proxy/buffer.rs", "reading into spare capacity"),
    ("router-userspace/src/proxy/endpoint.rs", "socket options"),
    ("router-userspace/tests/core/allocation.rs", "an allocator that counts"),
    ("tests/support/", "namespaces and signals"),
    ("xtask/src/workspace.rs", "the user's identity, and signals"),
];

pub fn unsafe_code(source: &Source) -> Vec<Finding> {
    if EDGES.iter().any(|(edge, _)| source.path.starts_with(edge.trim_end_matches('/'))) {
        return Vec::new();
    }
    let text = "`unsafe` stands at the edges of the house only; xtask/src/check/edges.rs lists them";
    source.lines_with("unsafe").map(|line| source.finding(line, text)).collect()
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
}
