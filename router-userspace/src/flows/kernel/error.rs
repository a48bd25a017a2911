//! Why there is no kernel data path.

use std::io;
use std::path::PathBuf;

use aya::maps::MapError;
use aya::programs::ProgramError;
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
        "this kernel's verifier refuses {program}: {reason}; this version of the router was not made for this kernel, or CAP_PERFMON is missing: run another version of one of the two, and report this with the kernel's version"
    )]
    Verifier { program: String, reason: String },
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

/// Why a program is not loaded. The verifier's refusal has the same errno as a missing privilege, and the verifier alone writes a log.
pub(super) fn not_loaded(program: &str, error: ProgramError) -> KernelError {
    match &error {
        ProgramError::LoadError { io_error, verifier_log } => {
            judge_load(program, io_error, &verifier_log.to_string())
        }
        _ => refused(program, error),
    }
}

fn judge_load(program: &str, error: &io::Error, log: &str) -> KernelError {
    // What it says of itself comes last.
    let is_statistics = |line: &&str| {
        ["verification time", "stack depth", "processed"].iter().any(|word| line.starts_with(word))
    };
    let reason = log.lines().map(str::trim).rfind(|line| !line.is_empty() && !is_statistics(line));
    if let Some(reason) = reason {
        return KernelError::Verifier { program: program.to_owned(), reason: reason.to_owned() };
    }
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => KernelError::NotPermitted,
        _ => KernelError::Refused { doing: program.to_owned(), message: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_verifier_refuses_is_no_missing_privilege() {
        let judged =
            |errno, log| judge_load("router_ingress", &io::Error::from_raw_os_error(errno), log).to_string();
        let log = "6986: (95) exit\ncannot return stack pointer to the caller\nverification time 278255 usec\n\
                   stack depth 0+48\nprocessed 95237 insns (limit 1000000) max_states_per_insn 10\n";
        for errno in [libc::EACCES, libc::EINVAL] {
            let said = judged(errno, log);
            assert!(
                said.starts_with("this kernel's verifier refuses router_ingress: cannot return stack pointer to the caller;"),
                "{said}"
            );
        }
        for errno in [libc::EPERM, libc::EACCES] {
            assert!(judged(errno, "").starts_with("loading kernel programs needs root"));
        }
        assert_eq!(
            judged(libc::ENOMEM, "\n"),
            "the kernel refused router_ingress: Cannot allocate memory (os error 12)"
        );
    }
}
