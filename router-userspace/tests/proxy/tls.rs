//! TLS by name: real handshakes through the proxy, which reads the ClientHello and nothing else.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use router::core::pool::{Instance, OnUnavailable, Pool, PoolId};
use router::core::request::Protocol;
use router::core::rules::compile;
use router::core::table::{Action, Overrides, Rule};
use router::proxy::settings::Offload;
use router_common::abi::reason::RefuseReason;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::actors::*;
use crate::splicer::Splicer;

const INTERNAL_ERROR: &[u8] = b"\x15\x03\x03\0\x02\x02\x50";
const ACCESS_DENIED: &[u8] = b"\x15\x03\x03\0\x02\x02\x31";
const DECODE_ERROR: &[u8] = b"\x15\x03\x03\0\x02\x02\x32";
const UNRECOGNIZED_NAME: &[u8] = b"\x15\x03\x03\0\x02\x02\x70";

/// One certificate for every server of these tests, and a client that trusts it.
struct Trust {
    server: Arc<ServerConfig>,
    client: ClientConfig,
}

impl Trust {
    fn new() -> Self {
        let names = ["a.example", "b.example", "x.b.example"].map(str::to_owned);
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
        let certificate: CertificateDer<'static> = cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        server.alpn_protocols = vec![b"h2".to_vec(), b"acme-tls/1".to_vec()];
        let mut trusted = RootCertStore::empty();
        trusted.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusted)
            .with_no_client_auth();
        Self { server: Arc::new(server), client }
    }

    /// An instance that says its name and then whatever it is told.
    fn instance(&self, name: &'static str) -> SocketAddr {
        let config = Arc::clone(&self.server);
        instance(move |connection| {
            let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(tls, connection);
            let mut asked = [0; 64];
            while let Ok(count @ 1..) = stream.read(&mut asked) {
                stream.write_all(&[name.as_bytes(), b": ", &asked[..count]].concat()).unwrap();
            }
            stream.conn.send_close_notify();
            let _ = stream.flush();
        })
    }

    fn connect<S: Read + Write>(
        &self,
        stream: S,
        name: &'static str,
        alpn: &[&str],
    ) -> StreamOwned<ClientConnection, S> {
        let mut config = self.client.clone();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let tls = ClientConnection::new(Arc::new(config), ServerName::try_from(name).unwrap()).unwrap();
        StreamOwned::new(tls, stream)
    }

    /// Who answers a client that asks for this name.
    fn answer(&self, proxy: &Proxy, name: &'static str, alpn: &[&str]) -> String {
        say(&mut self.connect(proxy.connect(), name, alpn), "who")
    }
}

fn say(stream: &mut (impl Read + Write), word: &str) -> String {
    stream.write_all(word.as_bytes()).unwrap();
    let mut answer = [0; 100];
    let count = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

fn rule(condition: &str, action: Action) -> Rule {
    Rule {
        name: condition.to_owned(),
        enabled: true,
        condition: compile(condition).unwrap(),
        action,
        overrides: Overrides::default(),
        persistence: None,
        preload: None,
        hits: Default::default(),
    }
}

fn pool_of(name: &str, address: SocketAddr) -> Pool {
    Pool { name: name.into(), instances: vec![Instance::new(name, address, None)], ..Pool::default() }
}

/// A TLS listener whose first pool has one instance, `first`.
fn secure(first: impl IntoIterator<Item = SocketAddr>) -> Setup {
    proxy(first).with(|settings| {
        settings.protocol = Protocol::Tls;
        settings.head.head = 16 * 1024;
    })
}

/// Sends bytes one by one, each in a segment of its own.
struct Dribble(TcpStream);

impl Write for Dribble {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Read for Dribble {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

/// What a client sends first.
fn hello(trust: &Trust, name: &'static str) -> Vec<u8> {
    let sent = Arc::new(Mutex::new(Vec::new()));
    struct Tap(Arc<Mutex<Vec<u8>>>);
    impl Write for Tap {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    impl Read for Tap {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(ErrorKind::WouldBlock.into())
        }
    }
    let _ = trust.connect(Tap(Arc::clone(&sent)), name, &[]).read(&mut [0; 1]);
    let sent = sent.lock().unwrap().clone();
    assert!(sent.len() > 100);
    sent
}

#[test]
fn names_and_protocols_lead_to_their_instances_and_everything_else_to_the_default() {
    let trust = Trust::new();
    let mut setup = secure([trust.instance("default")]);
    setup.pools = vec![pool_of("wild", trust.instance("wild")), pool_of("acme", trust.instance("acme"))];
    setup.rules = vec![
        rule(r#"ALPN("acme-tls/1")"#, Action::Pool(PoolId(2))),
        rule(r#"HostSNI("*.b.example")"#, Action::Pool(PoolId(1))),
        rule(r#"HostSNI("b.example")"#, Action::Deny { status: 403 }),
    ];
    let proxy = setup.start();
    assert_eq!(trust.answer(&proxy, "a.example", &[]), "default: who");
    assert_eq!(trust.answer(&proxy, "x.b.example", &["h2"]), "wild: who");
    assert_eq!(trust.answer(&proxy, "x.b.example", &["acme-tls/1"]), "acme: who");
    let mut denied = proxy.connect();
    denied.write_all(&hello(&trust, "b.example")).unwrap();
    assert_eq!(read_until_broken(&mut denied), (ACCESS_DENIED.to_vec(), None));
    proxy.wait_until_idle();
    assert_eq!(proxy.counters().requests.get(), 4);
    assert_eq!(proxy.counters().refused.get(RefuseReason::Denied), 1);
}

#[test]
fn a_client_hello_may_come_byte_by_byte_and_goes_on_as_it_came() {
    let trust = Trust::new();
    let flows = Arc::new(Splicer::default());
    let proxy = secure([trust.instance("default")])
        .flows(flows.clone())
        .with(|settings| settings.offload = Offload::Handoff)
        .start();
    let mut slow = trust.connect(Dribble(proxy.connect()), "a.example", &["h2"]);
    assert_eq!(say(&mut slow, "one"), "default: one");
    let [taken] = &flows.taken()[..] else { panic!("one handoff") };
    assert_eq!(taken.to_instance[..3], [22, 3, 1]);
    assert_eq!((taken.consumed_head_len, taken.surplus_len), (taken.to_instance.len(), 0));
    drop(slow);
    proxy.wait_until_idle();
}

#[test]
fn by_itself_a_connection_is_handed_off_if_it_goes_on_behind_its_handshake() {
    let trust = Trust::new();
    let flows = Arc::new(Splicer::default());
    let proxy = secure([trust.instance("default")]).flows(flows.clone()).start();
    let mut client = trust.connect(proxy.connect(), "a.example", &[]);
    assert!(flows.taken().is_empty(), "a handshake is not worth it");
    // Session tickets that come before the client speaks are an exchange too.
    assert_eq!(say(&mut client, "one"), "default: one");
    assert_eq!(say(&mut client, "two"), "default: two");
    assert_eq!(flows.taken().len(), 1);
    assert_eq!(say(&mut client, "three"), "default: three");
    drop(client);
    proxy.wait_until_idle();
}

#[test]
fn what_is_no_client_hello_is_refused_in_words_that_its_sender_may_understand() {
    let trust = Trust::new();
    let proxy = secure([trust.instance("default")]).start();
    let good = hello(&trust, "a.example");
    let mut odd_name = good.clone();
    let at = odd_name.windows(9).position(|window| window == b"a.example").unwrap();
    odd_name[at + 1] = b':';
    let mut lying = good.clone();
    lying[at - 1] += 1;
    let cases: [(&[u8], &[u8], RefuseReason); 4] = [
        (&odd_name, UNRECOGNIZED_NAME, RefuseReason::BadServerName),
        (&lying, DECODE_ERROR, RefuseReason::BadClientHello),
        (b"\x16\x03\x01\0\x04\x02\0\0\0", DECODE_ERROR, RefuseReason::BadClientHello),
        (b"\x16\x03\x01\0\x04\x01\xff\xff\xff", b"\x15\x03\x03\0\x02\x02\x2f", RefuseReason::HeadTooLarge),
    ];
    for (sent, wanted, reason) in cases {
        let before = proxy.counters().refused.get(reason);
        let mut client = proxy.connect();
        client.write_all(sent).unwrap();
        assert_eq!(read_until_broken(&mut client), (wanted.to_vec(), None), "{}", reason.name());
        assert_eq!(proxy.counters().refused.get(reason), before + 1, "{}", reason.name());
    }
    let plain = proxy.ask(get("/"));
    assert!(plain.starts_with("HTTP/1.1 400 ") && plain.contains("TLS"), "{plain}");
    assert_eq!(proxy.counters().refused.get(RefuseReason::HttpOnTls), 1);
    proxy.wait_until_idle();
}

#[test]
fn a_client_hello_that_never_ends_is_waited_for_until_the_deadline_only() {
    let trust = Trust::new();
    let proxy = secure([trust.instance("default")])
        .with(|settings| settings.header_timeout = Duration::from_millis(200))
        .start();
    let mut client = proxy.connect();
    client.write_all(&hello(&trust, "a.example")[..50]).unwrap();
    assert_eq!(read_until_broken(&mut client), (vec![], None), "there is no alert for it");
    assert_eq!(proxy.counters().refused.get(RefuseReason::HeaderTimeout), 1);
    proxy.wait_until_idle();
}

#[test]
fn when_nobody_can_serve_the_connection_is_reset_or_gets_an_alert_if_503_is_asked_for() {
    let trust = Trust::new();
    for (asked, wanted) in [
        (None, (vec![], Some(ErrorKind::ConnectionReset))),
        (Some(OnUnavailable::Status503), (INTERNAL_ERROR.to_vec(), None)),
    ] {
        let mut setup = secure([]);
        setup.on_unavailable = asked;
        let proxy = setup.start();
        let mut client = proxy.connect();
        client.write_all(&hello(&trust, "a.example")).unwrap();
        assert_eq!(read_until_broken(&mut client), wanted, "{asked:?}");
        assert_eq!(proxy.counters().refused.get(RefuseReason::Unavailable), 1);
    }
    let proxy = secure([nobody()]).start();
    let mut client = proxy.connect();
    client.write_all(&hello(&trust, "a.example")).unwrap();
    assert_eq!(read_until_broken(&mut client).1, Some(ErrorKind::ConnectionReset), "nobody listens there");
    assert_eq!(proxy.counters().refused.get(RefuseReason::ConnectFailed), 1);
}
