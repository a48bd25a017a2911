//! The inputs that every fuzzing begins with. Ordinary tests replay them, so that what was found once stays found.

use std::fs;
use std::path::Path;

/// Name and bytes of each seed of a target.
///
/// # Panics
/// If there are none: a test that replays nothing would prove nothing.
pub fn of(target: &str) -> Vec<(String, Vec<u8>)> {
    // Cargo runs a test in its package's directory, and every package lies in the workspace's.
    let directory = Path::new("../fuzz/seeds").join(target);
    let files = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut seeds: Vec<_> = files
        .map(|file| {
            let file = file.expect("the directory can be read");
            let name = file.file_name().to_string_lossy().into_owned();
            (name, fs::read(file.path()).expect("a seed can be read"))
        })
        .collect();
    assert!(!seeds.is_empty(), "{} is empty", directory.display());
    seeds.sort();
    seeds
}

/// Runs a target's body on each of its seeds; one that fails is named, and its panic goes on.
pub fn replay(target: &str, check: impl Fn(&[u8])) {
    for (name, bytes) in of(target) {
        let named = Named(&name);
        check(&bytes);
        drop(named);
    }
}

struct Named<'n>(&'n str);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}
