//! Runs a program again and again on a frame that is made anew in every round, and the same without the program.

use std::fs;
use std::mem::transmute_copy;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, MapData, ProgramArray};
use aya::programs::{ProgramFd, SchedClassifier, TestRun, TestRunOptions, TestRunResult, Xdp};
use aya::{Ebpf, EbpfLoader};

#[path = "../../router-ebpf/src/bench/arrivals.rs"]
mod arrivals;

use arrivals::{Arrivals, LONGEST, SHORT};

const OBJECT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bpf/bpfel-unknown-none/release/router-bench");

type ArrivalsBytes = [u64; size_of::<Arrivals>() / 8];

/// Where a program meets frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    Tc,
    Xdp,
}

impl Hook {
    pub const BOTH: [Self; 2] = [Self::Tc, Self::Xdp];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Tc => "TC",
            Self::Xdp => "XDP",
        }
    }
}

/// Frames that arrive.
#[derive(Clone, Debug)]
pub struct Sources {
    /// 64 bytes of TCP over IPv4, or 80 over IPv6; the last four bytes of the source address are 0, and the checksums right for that.
    pub frame: Vec<u8>,
    /// The last four bytes of the first source's address.
    pub first: u32,
    pub count: u32,
    /// How many sources further each round goes.
    pub stride: u32,
}

/// The programs that restore, and what they go on with.
pub struct Restoring {
    ebpf: Ebpf,
    arrivals: Array<MapData, ArrivalsBytes>,
    measured: [ProgramArray<MapData>; 2],
}

impl std::fmt::Debug for Restoring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restoring").finish_non_exhaustive()
    }
}

impl Restoring {
    pub fn load() -> Result<Self> {
        let object = fs::read(Path::new(OBJECT)).with_context(|| format!("cannot read {OBJECT}"))?;
        let mut ebpf = EbpfLoader::new().load(&object).context("cannot create the bench's maps")?;
        for (name, program) in ebpf.programs_mut() {
            let loaded = match program {
                aya::programs::Program::SchedClassifier(program) => program.load(),
                aya::programs::Program::Xdp(program) => program.load(),
                _ => continue,
            };
            loaded.with_context(|| format!("the verifier refuses {name}"))?;
        }
        let mut map = |name: &str| ebpf.take_map(name).with_context(|| format!("no map {name}"));
        Ok(Self {
            arrivals: map("ARRIVALS")?.try_into()?,
            measured: [map("MEASURED_TC")?.try_into()?, map("MEASURED_XDP")?.try_into()?],
            ebpf,
        })
    }

    /// From now on, this program is what frames arrive at.
    pub fn measure(&mut self, hook: Hook, program: &ProgramFd) -> Result<()> {
        self.measured[hook as usize].set(0, program, 0).context("cannot go on with the program")
    }

    /// From now on, frames arrive at a program that does nothing.
    pub fn measure_nothing(&mut self, hook: Hook) -> Result<()> {
        let program = match hook {
            Hook::Tc => program::<SchedClassifier>(&self.ebpf, "empty_tc")?.fd()?,
            Hook::Xdp => program::<Xdp>(&self.ebpf, "empty_xdp")?.fd()?,
        };
        self.measured[hook as usize].set(0, program, 0).context("cannot go on with the empty program")
    }

    /// The next run begins with the first of these sources.
    pub fn arrive(&mut self, sources: &Sources) -> Result<()> {
        let Sources { frame, first, count, stride } = sources;
        ensure!([SHORT, LONGEST].contains(&frame.len()), "frames of {} bytes are not restored", frame.len());
        let mut arrivals = Arrivals {
            frame: [0; LONGEST / 8],
            length: frame.len() as u32,
            first_source: *first,
            sources: *count,
            stride: *stride,
            turn: 0,
        };
        for (word, bytes) in arrivals.frame.iter_mut().zip(frame.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight"));
        }
        // SAFETY: it is made of integers, without padding.
        let bytes: ArrivalsBytes = unsafe { transmute_copy(&arrivals) };
        Ok(self.arrivals.set(0, bytes, 0)?)
    }

    /// So many frames arrive. Returns what one round took on average.
    pub fn run(&self, hook: Hook, sources: &Sources, rounds: u32) -> Result<Duration> {
        match hook {
            Hook::Tc => run(program::<SchedClassifier>(&self.ebpf, "restoring_tc")?, &sources.frame, rounds),
            Hook::Xdp => run(program::<Xdp>(&self.ebpf, "restoring_xdp")?, &sources.frame, rounds),
        }
    }
}

fn program<'a, P>(ebpf: &'a Ebpf, name: &str) -> Result<&'a P>
where
    &'a P: TryFrom<&'a aya::programs::Program, Error = aya::programs::ProgramError>,
{
    Ok(ebpf.program(name).with_context(|| format!("no program {name}"))?.try_into()?)
}

fn run<P>(program: &P, frame: &[u8], rounds: u32) -> Result<Duration>
where
    P: for<'a> TestRun<Opts<'a> = TestRunOptions<'a>, Result = TestRunResult>,
{
    let mut out = vec![0; frame.len() + 64];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        repeat: rounds,
        ..TestRunOptions::new()
    };
    Ok(program.test_run(options).context("cannot run frames through the program")?.duration)
}
