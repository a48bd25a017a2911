//! The steps on the way to a bound connection at which a daemon may die. One with debug assertions can be stopped before each, so that stories can kill it there.

/// A step of which the kernel programs, a client or an instance see something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A first packet has left the ring.
    Choose,
    /// A flow and what its instance is to get are filled.
    InsertKeys,
    /// Only the instance's packets find the flow.
    InsertClientKey,
    /// The flow waits for its instance, which has heard nothing.
    SendSyn,
    /// An instance that cannot be connected to is given up.
    Retract,
    /// Its packets find the flow no more; the client's do.
    RemoveKeys,
    /// The instance has all that was kept for it.
    Release,
    /// A socket has the client's packet, which nobody has acknowledged.
    LetSocketLive,
    /// The socket has acknowledged it, and gets no other.
    NoteSocket,
}

/// Says that this step comes next. The daemon stops (SIGSTOP) if the file that `ROUTERD_STOP_BEFORE` names holds the step's name.
#[cfg(debug_assertions)]
pub fn before(step: Step) {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(file) = FILE.get_or_init(|| std::env::var_os("ROUTERD_STOP_BEFORE").map(PathBuf::from)) else {
        return;
    };
    if std::fs::read_to_string(file).is_ok_and(|wanted| wanted == format!("{step:?}")) {
        // SAFETY: stops this process, which stays as it is.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}

#[cfg(not(debug_assertions))]
pub fn before(_: Step) {}
