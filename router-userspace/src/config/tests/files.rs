//! Files that cannot be read.

use std::fs;
use std::path::{Path, PathBuf};

use super::BASE;
use crate::config::load;

/// A file of this test's own, removed with its folder.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("router-config-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, content: &[u8]) -> PathBuf {
        let path = self.0.join("router.toml");
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What `load` says, with the folder's name left out.
fn load_error(path: &Path) -> String {
    let error = load(path).expect_err("unreadable").to_string();
    error.replace(&format!("{}/", path.parent().unwrap().display()), "")
}

#[test]
fn a_file_that_cannot_be_read_says_why() {
    let folder = Folder::new("unreadable");
    assert_eq!(
        load_error(&folder.0.join("no.toml")),
        "no.toml: there is no such file (name it with --config FILE)"
    );
    fs::create_dir(folder.0.join("dir")).unwrap();
    assert_eq!(
        load_error(&folder.0.join("dir")),
        "dir: is a directory (name the file itself, such as router.toml)"
    );
    let latin1 = folder.file(b"[daemon]\n# caf\xe9\ngroup = \"a\"\n");
    assert_eq!(load_error(&latin1), "router.toml:2:6: not UTF-8: byte 0xe9 (save the file as UTF-8)");
    let path = folder.file(BASE.as_bytes());
    assert_eq!(load(&path).unwrap().listeners.len(), 1);
}

#[test]
fn a_huge_file_is_refused_without_being_read() {
    let folder = Folder::new("huge");
    let path = folder.file(b"");
    fs::File::options().write(true).open(&path).unwrap().set_len(100 << 20).unwrap();
    assert_eq!(load_error(&path), "router.toml: is larger than 16 MiB (is this the right file?)");
}

#[test]
fn a_binary_file_is_not_mistaken_for_text() {
    let folder = Folder::new("binary");
    let path = folder.file(&[&b"\xff\xfe"[..], &[0; 100]].concat());
    assert_eq!(load_error(&path), "router.toml:1:1: not UTF-8: byte 0xff (save the file as UTF-8)");
}
