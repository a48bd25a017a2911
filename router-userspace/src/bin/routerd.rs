//! The daemon. See `routerd --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    router::app::main()
}
