//! Maps of the loaded object, as the daemon holds them.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Mutex;

use aya::Ebpf;
use aya::maps::lpm_trie::LpmTrie;
use aya::maps::{DevMap, HashMap, Map, PerCpuArray};

use super::clients::{ClientMemory, ClientRules};
use super::{KernelError, io_error, map_error};
use crate::flows::balance;
use crate::flows::mapped::{Mapped, SharedWithKernel};
use crate::flows::xdp::Xdp;

pub(super) fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map, KernelError> {
    Ok(ebpf.take_map(name).expect("the object is built together with this file"))
}

pub(super) fn balance_maps(ebpf: &mut Ebpf) -> Result<balance::Maps, KernelError> {
    let rules = take(ebpf, "CLIENT_RULES").and_then(|map| LpmTrie::try_from(map).map_err(map_error))?;
    let clients = take(ebpf, "AFFINITY").and_then(|map| HashMap::try_from(map).map_err(map_error))?;
    Ok(balance::Maps {
        settings: mapped(of(ebpf, "BALANCE_SETTINGS"))?,
        endpoints: mapped(of(ebpf, "ENDPOINTS"))?,
        services: mapped(of(ebpf, "SERVICES"))?,
        instances: mapped(of(ebpf, "INSTANCES"))?,
        tunnels: mapped(of(ebpf, "TUNNELS"))?,
        groups: mapped(of(ebpf, "GROUPS"))?,
        rings: mapped(of(ebpf, "RINGS"))?,
        flows: mapped(of(ebpf, "L4_FLOWS"))?,
        replies: mapped(of(ebpf, "REPLIES"))?,
        rules: ClientRules(Mutex::new(rules)),
        clients: ClientMemory(Mutex::new(clients)),
    })
}

pub(super) fn xdp(ebpf: &mut Ebpf, pin_dir: &Path) -> Result<Xdp, KernelError> {
    let devices = take(ebpf, "XDP_DEVICES").and_then(|map| DevMap::try_from(map).map_err(map_error))?;
    let frames = take(ebpf, "XDP_FRAMES").and_then(|map| PerCpuArray::try_from(map).map_err(map_error))?;
    Ok(Xdp::new(pin_dir, mapped(of(ebpf, "XDP_INTERFACES"))?, devices, frames))
}

/// A map that stays with the programs: one that is loaded later names it by its file descriptor.
pub(super) fn of<'e>(ebpf: &'e Ebpf, name: &str) -> &'e Map {
    ebpf.map(name).expect("the object is built together with this file")
}

pub(super) fn mapped<T: SharedWithKernel>(map: &Map) -> Result<Mapped<T>, KernelError> {
    let Map::Array(data) = map else { unreachable!("they are arrays") };
    let len = data.info().map_err(map_error)?.max_entries() as usize;
    Mapped::new(data.fd().as_fd(), len).map_err(|source| io_error("cannot map an array".to_owned(), source))
}

pub(super) fn xdp_program_of<'e>(ebpf: &'e mut Ebpf, name: &str) -> &'e mut aya::programs::Xdp {
    let program = ebpf.program_mut(name).and_then(|found| found.try_into().ok());
    program.expect("the object is built together with this file")
}
