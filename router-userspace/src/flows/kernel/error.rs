//! Why there is no kernel data path.

use std::io;
use std::path::PathBuf;

use aya::maps::MapError;
use router_common::abi::LAYOUT_VERSION;

use super::pins::BPF_FS;

/// Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(
        "loading kernel programs needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; start routerd as root or by its systemd unit"
    )]
    NotPermitted,
    #[error(
        "{path} is not on a BPF file system; mount one with `mount -t bpf bpf {BPF_FS}` or set datapath.pin_dir"
    )]
    NotBpfFs { path: PathBuf },
    #[error(
        "{path} holds flows in layout {found}, and this version uses layout {LAYOUT_VERSION}; run the version that made them, or start with --replace, which ends the connections that were handed off"
    )]
    Layout { path: PathBuf, found: u32 },
    #[error("interface {name} does not exist; correct datapath.interfaces or create it")]
    NoInterface { name: String },
    #[error(
        "this kernel cannot attach by TCX, which came with Linux 6.6; update the kernel to hand connections off"
    )]
    NoTcx,
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
    #[error("the kernel refused {doing}: {message}")]
    Refused { doing: String, message: String },
}

pub(super) fn map_error(error: MapError) -> KernelError {
    refused("a map", error)
}

pub(super) fn io_error(doing: String, source: io::Error) -> KernelError {
    if source.kind() == io::ErrorKind::PermissionDenied {
        KernelError::NotPermitted
    } else {
        KernelError::Io { doing, source }
    }
}

/// Walks the causes: the innermost holds the errno.
pub(super) fn refused(doing: &str, error: impl std::error::Error + 'static) -> KernelError {
    let mut message = error.to_string();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>()
            && matches!(io.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        {
            return KernelError::NotPermitted;
        }
        message = error.to_string();
        cause = error.source();
    }
    KernelError::Refused { doing: doing.to_owned(), message }
}
