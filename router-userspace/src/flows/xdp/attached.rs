//! XDP on the data path's interfaces: its links, the devices that it sends by, and what the programs must know of them.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::{DevMap, MapData, PerCpuArray};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::{XdpLink, XdpMode};
use aya::programs::{ProgramError, Xdp as Program};
use router_common::abi::reason::XdpReason;
use router_common::abi::xdp::Interface;

use super::choice::{Hook, Wishes, choose};
use super::detach::detach;
use super::facts;
use crate::flows::mapped::Mapped;
use crate::flows::netlink::{Mac, Netlink};

/// Where one interface's packets are met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub interface: String,
    pub hook: Hook,
    /// Why there.
    pub reason: String,
    /// What to set so that XDP can do more.
    pub advice: Vec<String>,
}

/// The XDP side of the data path.
pub struct Xdp {
    pin_dir: PathBuf,
    interfaces: Mapped<Interface>,
    frames: PerCpuArray<MapData, u64>,
    inner: Mutex<Inner>,
}

struct Inner {
    devices: DevMap<MapData>,
    attachments: Vec<Attachment>,
    /// Indexes of interfaces of which the programs know.
    known: HashSet<u32>,
    /// Many packets come with open checksums.
    partial: bool,
}

impl fmt::Debug for Xdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xdp").field("pin_dir", &self.pin_dir).finish_non_exhaustive()
    }
}

impl Xdp {
    /// Nothing is attached yet.
    pub fn new(
        pin_dir: &Path,
        interfaces: Mapped<Interface>,
        devices: DevMap<MapData>,
        frames: PerCpuArray<MapData, u64>,
    ) -> Self {
        let known = (0..).zip(interfaces.iter()).filter(|(_, entry)| entry.sends.get() != 0);
        let known = known.map(|(index, _)| index).collect();
        let inner = Inner { devices, attachments: Vec::new(), known, partial: false };
        Self { pin_dir: pin_dir.to_owned(), interfaces, frames, inner: Mutex::new(inner) }
    }

    /// Attaches the program to these interfaces as they are wished for, or detaches it. A link that an earlier daemon left gets the new program.
    pub fn attach(&self, program: &mut Program, interfaces: &[String], wishes: &Wishes) {
        let mut attachments = Vec::new();
        for interface in interfaces {
            let attachment = self.attach_one(program, interface, wishes);
            let Attachment { hook, reason, .. } = &attachment;
            tracing::info!(%interface, hook = hook.name(), "packets are met there: {reason}");
            attachments.push(attachment);
        }
        self.lock().attachments = attachments;
        self.refresh();
    }

    fn attach_one(&self, program: &mut Program, interface: &str, wishes: &Wishes) -> Attachment {
        let index = nix::net::if_::if_nametoindex(interface).map_err(io::Error::from);
        let facts = index.and_then(facts::of).map_err(|error| error.to_string());
        let (mut hook, mut reason) = choose(wishes.of(interface), facts.as_ref().map_err(String::as_str));
        for (mode, next) in [(Hook::XdpNative, Hook::XdpGeneric), (Hook::XdpGeneric, Hook::Tc)] {
            if hook != mode {
                self.detach(mode, interface);
                continue;
            }
            // The kernel does not let both be active at once, not even while one takes the other's place.
            self.detach(if mode == Hook::XdpNative { Hook::XdpGeneric } else { Hook::XdpNative }, interface);
            if let Err(error) = self.link(program, mode, interface) {
                let what = if mode == Hook::XdpNative { "in its driver" } else { "in general code" };
                reason = format!("{reason}; the kernel refuses XDP {what}: {error}");
                hook = next;
            }
        }
        Attachment { interface: interface.to_owned(), hook, reason, advice: Vec::new() }
    }

    fn link(&self, program: &mut Program, mode: Hook, interface: &str) -> Result<(), String> {
        // Only hosts with XDP need the program.
        if program.fd().is_err() {
            program.load().map_err(|error| innermost(&error))?;
        }
        let name = pin(mode, interface);
        let path = self.pin_dir.join(&name);
        if let Ok(link) = PinnedLink::from_pin(&path) {
            let replaced =
                XdpLink::try_from(FdLink::from(link)).ok().and_then(|link| program.attach_to_link(link).ok());
            if let Some(link) = replaced {
                // The pin holds the link; this handle is not needed.
                drop(program.take_link(link));
                return Ok(());
            }
            // The interface was deleted and made again: the old link hangs in the air.
            self.detach(mode, interface);
        }
        let flag = if mode == Hook::XdpNative { XdpMode::Driver } else { XdpMode::Skb };
        let link =
            program.attach(interface, flag).and_then(|link| program.take_link(link)).map_err(|error| {
                match &error {
                    ProgramError::SyscallError(refused)
                        if refused.io_error.raw_os_error() == Some(libc::EBUSY) =>
                    {
                        "another XDP program is attached there".to_owned()
                    }
                    _ => innermost(&error),
                }
            })?;
        FdLink::try_from(link)
            .map_err(|error| innermost(&error))?
            .pin(&path)
            .map_err(|error| innermost(&error))?;
        Ok(())
    }

    fn detach(&self, mode: Hook, interface: &str) {
        let path = self.pin_dir.join(pin(mode, interface));
        // One whose interface is gone is detached already, and without a pin nothing is attached.
        let _ = detach(&path);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("XDP stays attached to {interface}: cannot remove {}: {error}", path.display());
        }
    }

    /// The names of the links that are pinned.
    pub fn links(&self) -> BTreeSet<String> {
        let inner = self.lock();
        let attached = inner.attachments.iter().filter(|attachment| attachment.hook != Hook::Tc);
        attached.map(|attachment| pin(attachment.hook, &attachment.interface)).collect()
    }

    /// Where each interface's packets are met.
    pub fn attachments(&self) -> Vec<Attachment> {
        self.lock().attachments.clone()
    }

    /// Frames that XDP has met, summed over CPUs.
    pub fn frames(&self, reason: XdpReason) -> u64 {
        self.frames.get(&(reason.index() as u32), 0).map_or(0, |cpus| cpus.iter().sum())
    }

    /// Tells the programs anew of the host's interfaces, which come, go and change.
    pub fn refresh(&self) {
        let mut inner = self.lock();
        let hooks: HashSet<&str> = inner.attachments.iter().map(|found| found.hook.name()).collect();
        let native = hooks.contains(Hook::XdpNative.name());
        if !native && !hooks.contains(Hook::XdpGeneric.name()) {
            self.forget(&mut inner, |_| true);
            return;
        }
        let found = Netlink::open().and_then(|mut netlink| netlink.links()).and_then(|links| {
            let senders: HashSet<u32> =
                if native { facts::senders()?.into_iter().collect() } else { HashSet::new() };
            Ok((links, senders))
        });
        let (links, senders) = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!("the interfaces for XDP cannot be read: {error}");
                return;
            }
        };
        for link in &links {
            let (Some(entry), Some(mac)) = (self.interfaces.get(link.index as usize), link.mac) else {
                continue;
            };
            let words = words_of(mac);
            for (word, new) in entry.ethernet.iter().zip(words) {
                word.set(new);
            }
            // What generic XDP sends goes by any interface. The device is named each time: the kernel forgets one that goes, and it may have come back with
            // the same index.
            let sends = link.is_up
                && (!native || senders.contains(&link.index))
                && inner.devices.set(link.index, link.index, None, 0).is_ok();
            entry.sends.set(sends.into());
            inner.known.insert(link.index);
        }
        let there: HashSet<u32> = links.iter().map(|link| link.index).collect();
        self.forget(&mut inner, |index| !there.contains(&index));
        self.advise(&mut inner);
    }

    fn forget(&self, inner: &mut Inner, gone: impl Fn(u32) -> bool) {
        inner.known.retain(|index| {
            if gone(*index)
                && let Some(entry) = self.interfaces.get(*index as usize)
            {
                entry.sends.set(0);
            }
            !gone(*index)
        });
    }

    fn advise(&self, inner: &mut Inner) {
        let open = self.frames(XdpReason::PartialChecksum);
        // A few look like that by chance.
        let partial = open > 100 && open > self.frames(XdpReason::Carried) / 100;
        if partial && !inner.partial {
            tracing::warn!(
                "packets arrive whose checksum was left to a network card (virtual interfaces do that); XDP leaves them to TC: set `ethtool -K PEER tx off` on the other end of the interface"
            );
        }
        inner.partial = partial;
        for attachment in &mut inner.attachments {
            attachment.advice.clear();
            if attachment.hook == Hook::Tc {
                continue;
            }
            let index = nix::net::if_::if_nametoindex(attachment.interface.as_str());
            let sends = index.ok().and_then(|index| self.interfaces.get(index as usize));
            if sends.is_none_or(|entry| entry.sends.get() == 0) {
                attachment.advice.push(
                    "packets of XDP cannot leave by it and go by TC: its driver, or the other end of a veth (`ethtool -K PEER gro on`), does not take them".to_owned(),
                );
            }
            if partial {
                attachment.advice.push(format!(
                    "{open} packets came with their checksum left out and went by TC: if the other end is a veth, `ethtool -K PEER tx off`"
                ));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Interface names hold neither `/` nor `:`, so the name is unique.
fn pin(mode: Hook, interface: &str) -> String {
    format!("{}:{interface}", mode.name())
}

fn words_of(mac: Mac) -> [u32; 2] {
    [u32::from_ne_bytes([mac[0], mac[1], mac[2], mac[3]]), u32::from_ne_bytes([mac[4], mac[5], 0, 0])]
}

/// The innermost cause, which holds the kernel's word.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}
