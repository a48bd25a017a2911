//! `routerd` and its configuration file, as an operator meets them: what is printed, and the exit status.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("routerd-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, text: &str) -> PathBuf {
        let path = self.0.join("router.toml");
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn routerd(arguments: &[&str], config: &Path) -> Output {
    // A daemon that serves, where it should have refused, would never end.
    let mut bounded = Command::new("timeout");
    bounded.arg("60").arg(env!("CARGO_BIN_EXE_routerd")).args(arguments).arg("--config").arg(config);
    bounded.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_bad_file_is_refused_whole_with_every_place_before_anything_is_opened() {
    let folder = Folder::new("bad");
    let socket = folder.0.join("control.sock");
    let pins = folder.0.join("pins");
    let config = folder.write(&format!(
        r#"[daemon]
control_socket = "{}"
[datapath]
pin_dir = "{}"
max_flows = "many"

[[listener]]
name = "web"
address = "127.0.0.1:0"

[[pool]]
name = "app"

[[pool.instance]]
name = "app1"
adress = "127.0.0.1:8000"

[[rule]]
name = "api"
match = 'Host("api.example") && Pth("/v1")'
pool = "ap"
"#,
        socket.display(),
        pins.display()
    ));
    // With and without --check the file is judged alike, and nothing is left behind.
    for arguments in [&["--check"][..], &[]] {
        let output = routerd(arguments, &config);
        assert_eq!(output.status.code(), Some(1));
        let report = text(&output.stderr);
        for place in ["5:13", "9:11", "14:1", "16:1", "20:33", "21:8"] {
            assert!(report.contains(&format!("{}:{place}]", config.display())), "no {place} in {report}");
        }
        assert_eq!(report.matches('×').count(), 6, "{report}");
        assert_eq!(text(&output.stdout), "");
        assert!(!socket.exists() && !pins.exists());
    }
}

#[test]
fn a_file_that_is_not_there_is_said_in_one_sentence() {
    let output = routerd(&[], Path::new("/nowhere/router.toml"));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nowhere/router.toml: there is no such file"));
}

#[test]
fn the_examples_pass_the_check_that_they_tell_people_to_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 4, "{files:?}");
    for path in files {
        let output = routerd(&["--check"], &path);
        let name = path.display();
        assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output.stderr));
        assert!(text(&output.stdout).trim_end().ends_with("is valid"), "{name}");
        assert_eq!(text(&output.stderr), "", "{name}");
    }
}

#[test]
fn the_configuration_in_the_readme_is_accepted_as_it_stands() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let block =
        readme.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a TOML block");
    let output = routerd(&["--check"], &Folder::new("readme").write(block));
    assert!(output.status.success(), "{}", text(&output.stderr));
}
