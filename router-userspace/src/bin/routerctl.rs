//! The command line client. See `routerctl --help`.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Colours go to a terminal only; NO_COLOR and CLICOLOR_FORCE are honoured.
    let mut out = anstream::AutoStream::auto(std::io::stdout());
    let mut err = anstream::AutoStream::auto(std::io::stderr());
    let exit = router::cli::run(std::env::args_os(), &mut out, &mut err);
    drop(out.flush());
    ExitCode::from(exit as u8)
}
