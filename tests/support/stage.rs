//! An exchange in both directions that tells what both of its ends have agreed: for stories about handshakes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lab::{Family, Host};
use crate::scene::pattern;
use crate::tcp::{Agreed, agreed};
use crate::{Entry, Peer, Scene, peer};

/// Bytes of a body: enough for many windows, and to scale them up.
pub const LENGTH: usize = 2 << 20;

/// A scene whose instance answers `GET` with [`LENGTH`] bytes and returns the body of a `PUT`, and says what it has agreed to.
#[derive(Debug)]
pub struct Stage {
    pub scene: Scene,
    _peer: Peer,
    instance_agreed: Receiver<Agreed>,
}

impl Stage {
    /// With listeners that hand off.
    pub fn new(family: Family) -> Self {
        Self::of(Scene::over(family))
    }

    /// With one more, which binds.
    pub fn binding(family: Family) -> Self {
        Self::of(Scene::binding(family, 1, ""))
    }

    fn of(scene: Scene) -> Self {
        let (tell, instance_agreed) = channel();
        let tell = Mutex::new(tell);
        let body = Arc::new(pattern(LENGTH));
        let peer = scene.peer(move |stream| {
            tell.lock().unwrap().send(agreed(&stream)?).map_err(io::Error::other)?;
            serve(stream, &body)
        });
        Self { scene, _peer: peer, instance_agreed }
    }

    /// Sets keys of `net.ipv4` on hosts.
    pub fn set(&self, sysctls: &[(Host, &str, &str)]) {
        for (host, key, value) in sysctls {
            self.scene.lab.sysctl(*host, &format!("net.ipv4.{key}"), value).unwrap();
        }
    }

    /// Sends a body down and one up on one connection, and some small requests between. Returns what the client's end and the
    /// instance's end have agreed to.
    pub fn exchange(&self, entry: Entry) -> (Agreed, Agreed) {
        let began = Instant::now();
        let body = pattern(LENGTH);
        let mut connection = self.scene.connect(entry);
        assert!(
            connection.get("/peer/down").unwrap().body == body,
            "{entry:?}: the download arrives changed"
        );
        self.scene.flow_of(&connection);
        connection
            .send(format!("PUT /peer/up HTTP/1.1\r\nHost: lab\r\nContent-Length: {LENGTH}\r\n\r\n"))
            .unwrap();
        let uploading = connection.sender().unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| (&uploading).write_all(&body));
            assert!(connection.reply().unwrap().body == body, "{entry:?}: the upload arrives changed");
        });
        for _ in 0..3 {
            assert_eq!(connection.get("/peer/small").unwrap().body, b"small");
        }
        let ends = (
            agreed(connection.stream()).unwrap(),
            self.instance_agreed.recv_timeout(Duration::from_secs(30)).unwrap(),
        );
        println!("{entry:?} in {:.2?}: client {:?}, instance {:?}", began.elapsed(), ends.0, ends.1);
        ends
    }

    /// Everything was handed off, and no packet was spoiled.
    pub fn assert_carried(&self, connections: u64) {
        assert_eq!(self.scene.carried(), (connections, 0), "handed off and relayed");
        self.scene.comes_to_rest();
        self.scene.assert_no_segment_was_spoiled();
    }
}

fn serve(mut stream: TcpStream, body: &[u8]) -> io::Result<()> {
    loop {
        let head = String::from_utf8_lossy(&peer::read_head(&mut stream)?).into_owned();
        match head.split(' ').nth(1) {
            Some("/peer/down") => answer(&mut stream, body)?,
            Some("/peer/up") => {
                let mut received = vec![0; LENGTH];
                stream.read_exact(&mut received)?;
                answer(&mut stream, &received)?;
            }
            _ => answer(&mut stream, b"small")?,
        }
    }
}

fn answer(stream: &mut TcpStream, body: &[u8]) -> io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
    stream.write_all(body)
}
