//! Capture files: Ethernet frames out of pcap and pcapng, and into pcapng.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};

/// The first bytes of a pcapng file, in either byte order.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Why a capture file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CaptureError {
    #[error("cannot read {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} is no pcap or pcapng file, or is damaged behind {read} packets: {source}")]
    Malformed { path: PathBuf, read: usize, source: pcap_file::PcapError },
    #[error("{path} holds no Ethernet frames but {found:?}; capture on an Ethernet interface, not on `any`")]
    LinkType { path: PathBuf, found: DataLink },
    #[error("cannot write {path}: {source}")]
    Unwritable { path: PathBuf, source: io::Error },
}

/// A captured frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Captured {
    pub(super) frame: Vec<u8>,
    /// How long it was, in bytes; `frame` may be only its beginning.
    pub(super) length: u32,
}

/// At most `limit` frames of a file, from the first on, and whether there are more.
pub(super) fn read(path: &Path, limit: usize) -> Result<(Vec<Captured>, bool), CaptureError> {
    let unreadable = |source| CaptureError::Unreadable { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
    let mut magic = Vec::new();
    file.by_ref().take(PCAPNG_MAGIC.len() as u64).read_to_end(&mut magic).map_err(unreadable)?;
    file.rewind().map_err(unreadable)?;
    let mut frames = Frames { path, limit, read: Vec::new() };
    let more = if magic == PCAPNG_MAGIC { frames.pcapng(file)? } else { frames.pcap(file)? };
    Ok((frames.read, more))
}

struct Frames<'a> {
    path: &'a Path,
    limit: usize,
    read: Vec<Captured>,
}

impl Frames<'_> {
    fn pcap(&mut self, file: impl Read) -> Result<bool, CaptureError> {
        let mut reader = PcapReader::new(file).map_err(|source| self.malformed(source))?;
        self.check(reader.header().datalink)?;
        while let Some(packet) = reader.next_packet() {
            let packet = packet.map_err(|source| self.malformed(source))?;
            if !self.take(&packet.data, packet.orig_len) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn pcapng(&mut self, file: impl Read) -> Result<bool, CaptureError> {
        let mut reader = PcapNgReader::new(file).map_err(|source| self.malformed(source))?;
        while let Some(block) = reader.next_block() {
            let taken = match block.map_err(|source| self.malformed(source))? {
                Block::InterfaceDescription(interface) => {
                    self.check(interface.linktype)?;
                    true
                }
                Block::EnhancedPacket(packet) => self.take(&packet.data, packet.original_len),
                Block::SimplePacket(packet) => self.take(&packet.data, packet.original_len),
                Block::Packet(packet) => self.take(&packet.data, packet.original_len),
                _ => true,
            };
            if !taken {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn check(&self, found: DataLink) -> Result<(), CaptureError> {
        match found {
            DataLink::ETHERNET => Ok(()),
            found => Err(CaptureError::LinkType { path: self.path.to_owned(), found }),
        }
    }

    /// False if there are as many as wanted already.
    fn take(&mut self, data: &[u8], length: u32) -> bool {
        if self.read.len() == self.limit {
            return false;
        }
        self.read.push(Captured { frame: data.to_vec(), length: length.max(data.len() as u32) });
        true
    }

    fn malformed(&self, source: pcap_file::PcapError) -> CaptureError {
        CaptureError::Malformed { path: self.path.to_owned(), read: self.read.len(), source }
    }
}

/// A pcapng file that is being written.
pub(super) struct Writer {
    path: PathBuf,
    file: PcapNgWriter<BufWriter<File>>,
    /// In the order of their numbers in the file.
    interfaces: Vec<String>,
}

impl Writer {
    pub(super) fn create(path: &Path) -> Result<Self, CaptureError> {
        let file = File::create(path).map_err(|source| unwritable(path, source))?;
        let file = PcapNgWriter::new(BufWriter::new(file));
        let file = file.map_err(|error| unwritable(path, io_error(error)))?;
        Ok(Self { path: path.to_owned(), file, interfaces: Vec::new() })
    }

    /// `time` is since 1970, `comment` one line.
    pub(super) fn write(
        &mut self,
        captured: &Captured,
        interface: &str,
        time: Duration,
        comment: &str,
    ) -> Result<(), CaptureError> {
        let interface_id = self.interface(interface)?;
        let packet = EnhancedPacketBlock {
            interface_id,
            timestamp: time,
            original_len: captured.length,
            data: (&captured.frame).into(),
            options: vec![EnhancedPacketOption::Comment(comment.into())],
        };
        self.file.write_pcapng_block(packet).map(drop).map_err(|source| self.unwritable(source))
    }

    fn interface(&mut self, name: &str) -> Result<u32, CaptureError> {
        if let Some(known) = self.interfaces.iter().position(|known| known == name) {
            return Ok(known as u32);
        }
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(name.into()),
                // Timestamps are written in ns.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        self.file.write_pcapng_block(interface).map_err(|source| self.unwritable(source))?;
        self.interfaces.push(name.to_owned());
        Ok(self.interfaces.len() as u32 - 1)
    }

    /// Nothing is left in memory.
    pub(super) fn finish(self) -> Result<(), CaptureError> {
        let mut file = self.file.into_inner();
        file.flush().map_err(|source| unwritable(&self.path, source))
    }

    fn unwritable(&self, error: pcap_file::PcapError) -> CaptureError {
        unwritable(&self.path, io_error(error))
    }
}

fn unwritable(path: &Path, source: io::Error) -> CaptureError {
    CaptureError::Unwritable { path: path.to_owned(), source }
}

fn io_error(error: pcap_file::PcapError) -> io::Error {
    match error {
        pcap_file::PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
