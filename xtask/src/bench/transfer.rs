//! Large bodies, down and up, by a client of our own: it counts within a window of time while whole bodies move, and
//! looks into every page of them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::meter::{Meter, Usage};
use crate::topology::{Host, Lab};

/// Bytes in one call.
const CHUNK: usize = 256 * 1024;
/// How long a peer may stand still.
const PATIENCE: Duration = Duration::from_secs(20);
/// Files of the lab have their offset written into the beginning of every page.
const PAGE: u64 = 4096;

/// When bytes are counted: for `length`, once the transfers have run for `ramp`.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub ramp: Duration,
    pub length: Duration,
}

/// What was seen within the window.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    pub bytes: u64,
    pub usage: Usage,
}

/// Moves whole bodies on several connections at a time until the window is over. `one` moves one body and counts its
/// bytes as they go.
pub fn keep_moving(
    lab: &Lab,
    connections: usize,
    window: Window,
    meter: &Meter,
    one: impl Fn(&AtomicU64) -> Result<()> + Sync,
) -> Result<Moved> {
    let (bytes, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || -> Result<()> {
        while !over.load(Ordering::Relaxed) {
            one(&bytes)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> =
            (0..connections).map(|_| scope.spawn(|| lab.inside(Host::Client, work)?)).collect();
        let look = || (meter.read(), bytes.load(Ordering::Relaxed));
        sleep(window.ramp);
        let (before, first) = look();
        sleep(window.length);
        let (after, last) = look();
        over.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(Moved { bytes: last - first, usage: after? - before? })
    })
}

/// Downloads one file of `size` bytes.
pub fn download(from: SocketAddr, path: &str, size: u64, moved: &AtomicU64) -> Result<()> {
    let mut stream = connect(from)?;
    // In one packet, as clients send it.
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: bench.example\r\n\r\n").as_bytes())?;
    let mut buffer = vec![0; CHUNK];
    let (head, mut filled) = read_head(&mut stream, &mut buffer)?;
    ensure!(head.status == 200, "status {} instead of 200", head.status);
    ensure!(head.length == Some(size), "a body of {:?} bytes instead of {size}", head.length);
    buffer.copy_within(head.end..filled, 0);
    filled -= head.end;
    let mut offset = 0;
    loop {
        check(offset, &buffer[..filled])?;
        offset += filled as u64;
        moved.fetch_add(filled as u64, Ordering::Relaxed);
        if offset >= size {
            ensure!(offset == size, "{} bytes too many", offset - size);
            return Ok(());
        }
        filled = stream.read(&mut buffer).with_context(|| format!("after {offset} of {size} bytes"))?;
        ensure!(filled > 0, "the body ended after {offset} of {size} bytes");
    }
}

/// Uploads `body`.
pub fn upload(to: SocketAddr, path: &str, body: &[u8], moved: &AtomicU64) -> Result<()> {
    let mut stream = connect(to)?;
    let head =
        format!("PUT {path} HTTP/1.1\r\nHost: bench.example\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    for chunk in body.chunks(CHUNK) {
        stream.write_all(chunk)?;
        moved.fetch_add(chunk.len() as u64, Ordering::Relaxed);
    }
    let (head, _) = read_head(&mut stream, &mut [0; 4096])?;
    ensure!(matches!(head.status, 201 | 204), "status {} instead of 201 or 204", head.status);
    Ok(())
}

/// Whether a file has this content.
pub fn holds(file: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::open(file).with_context(|| format!("{} was not stored", file.display()))?;
    ensure!(file.metadata()?.len() == content.len() as u64, "the stored body has another length");
    let mut buffer = vec![0; CHUNK];
    for chunk in content.chunks(CHUNK) {
        file.read_exact(&mut buffer[..chunk.len()])?;
        ensure!(&buffer[..chunk.len()] == chunk, "the stored body has other bytes");
    }
    Ok(())
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE).with_context(|| format!("connecting to {to}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

struct Head {
    status: u16,
    /// Of the body, if the head tells.
    length: Option<u64>,
    /// Bytes of the head itself.
    end: usize,
}

/// Reads until the response's head is complete; also returns how much of the buffer is filled.
fn read_head(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(Head, usize)> {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).context("waiting for the response")?;
        if read == 0 {
            bail!("the connection ended within the response's head");
        }
        filled += read;
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut fields);
        if let httparse::Status::Complete(end) = response.parse(&buffer[..filled])? {
            let status = response.code.unwrap_or(0);
            let length =
                response.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
            let length = length.and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
            return Ok((Head { status, length, end }, filled));
        }
    }
}

/// Compares the offsets in all pages that begin within `bytes`, which lie at `offset`.
fn check(offset: u64, bytes: &[u8]) -> Result<()> {
    let mut page = offset.next_multiple_of(PAGE);
    while let Some(stamp) = bytes.get((page - offset) as usize..).and_then(<[u8]>::first_chunk::<8>) {
        let found = u64::from_le_bytes(*stamp);
        ensure!(found == page, "at offset {page} are the bytes of offset {found}");
        page += PAGE;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_repeated_and_swapped_pages_are_noticed() {
        let mut content = vec![7; 4 * PAGE as usize];
        for (number, page) in content.chunks_exact_mut(PAGE as usize).enumerate() {
            page[..8].copy_from_slice(&(number as u64 * PAGE).to_le_bytes());
        }
        check(0, &content).unwrap();
        check(5, &content[5..]).unwrap();
        check(PAGE - 3, &content[PAGE as usize - 3..2 * PAGE as usize + 7]).unwrap();
        assert!(check(1, &content).is_err(), "a byte was lost");
        content.copy_within(0..8, PAGE as usize);
        assert!(check(0, &content).is_err(), "a page came twice");
    }
}
