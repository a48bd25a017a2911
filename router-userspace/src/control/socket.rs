//! Creating the control socket: who may connect, and whose place it may take.
//!
//! Between `bind` and `listen` nobody can connect, whatever the file's mode; owner and mode are set there, so there is
//! no moment at which the wrong people can get in.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::unistd::Group;
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that wait for being accepted.
const BACKLOG: i32 = 128;

/// Why the control socket could not be opened. Every case is safe to retry once it is mended.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("another daemon answers on the control socket {0}; stop it first, or set another control_socket")]
    InUse(PathBuf),
    #[error("{0} exists and is not a socket; remove it, or set another control_socket")]
    NotASocket(PathBuf),
    #[error("the control socket's path {0} is too long: Unix sockets allow 107 bytes; choose a shorter one")]
    PathTooLong(PathBuf),
    #[error(
        "control_group \"{0}\" does not exist; create it with `groupadd --system {0}`, or leave the key out"
    )]
    NoSuchGroup(String),
    #[error(
        "cannot {action} {path}: {source}; run as root, or choose a control_socket that this user may create"
    )]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// A listening control socket. Dropping it removes the file, unless another daemon has put its own there since.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    identity: (u64, u64),
    listener: UnixListener,
}

impl ControlSocket {
    /// Listens on `path`, creating its directory (mode 0755). The socket's mode is 0600, or 0660 and the group's if
    /// a group is given. A socket that nobody answers is replaced.
    pub fn bind(path: &Path, group: Option<&str>) -> Result<Self, SocketError> {
        if path.as_os_str().len() > 107 {
            return Err(SocketError::PathTooLong(path.to_owned()));
        }
        let group = group.map(find_group).transpose()?;
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)
                .map_err(at("create the directory", directory))?;
        }
        remove_stale(path)?;

        let listener = listen(path, group)?;
        let metadata = fs::symlink_metadata(path).map_err(at("look at", path))?;
        Ok(Self { path: path.to_owned(), identity: (metadata.dev(), metadata.ino()), listener })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A second handle of the listening socket.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if ours {
            drop(fs::remove_file(&self.path));
        }
    }
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at("look at", path)(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    // Only a refused connection proves that nobody listens: a full backlog or a missing permission does not.
    match connect_without_waiting(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(at("replace the stale socket", path))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => Err(SocketError::InUse(path.to_owned())),
    }
}

fn connect_without_waiting(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket.into())
}

fn listen(path: &Path, group: Option<Group>) -> Result<UnixListener, SocketError> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(at("create", path))?;
    let address = SockAddr::unix(path).map_err(at("create", path))?;
    socket.bind(&address).map_err(at("create", path))?;
    let opened = restrict(path, group).and_then(|()| {
        socket.listen(BACKLOG).map_err(at("listen on", path))?;
        socket.set_nonblocking(true).map_err(at("listen on", path))
    });
    opened.inspect_err(|_| drop(fs::remove_file(path)))?;
    Ok(socket.into())
}

fn restrict(path: &Path, group: Option<Group>) -> Result<(), SocketError> {
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    if let Some(group) = group {
        chown(path, None, Some(group.gid.as_raw())).map_err(at("change the group of", path))?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(at("set the mode of", path))
}

fn find_group(name: &str) -> Result<Group, SocketError> {
    Group::from_name(name).ok().flatten().ok_or_else(|| SocketError::NoSuchGroup(name.to_owned()))
}

fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError {
    let path = path.to_owned();
    move |source| SocketError::Io { action, path, source }
}
