//! Hostile and odd input, end to end: through a running router, on every way of carrying connections. What each part refuses by
//! itself, byte by byte, is tested beside it:
//!
//! | input | refused by | its own tests |
//! | --- | --- | --- |
//! | heads | `proxy::http` | `src/proxy/http/tests.rs`; HAProxy and nginx judge the same corpus in `tests/oracle.rs` |
//! | paths | `core::path` | `tests/core/paths.rs` |
//! | slow and many heads | `proxy::head`, `proxy::budget` | `tests/proxy/heads.rs` |
//! | packets | `router_common::path` | `tests/pictures.rs`, `tests/properties.rs`; in the kernel `suite/parity` |
//! | endings | the packet path and the daemon | `suite/forged.rs` |
//! | control requests | `control` | `tests/control/hostile.rs`; a flood in `suite/control.rs` |

mod heads;
mod packets;
mod patience;
