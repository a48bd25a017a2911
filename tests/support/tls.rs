//! TLS in the lab: an authority, nginx that speaks TLS on backends, and clients that trust it.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::lab::{Host, Lab, peers};
use crate::nginx::{self, Nginx};

/// Where the TLS servers of backends listen.
pub const PORT: u16 = 443;

/// Signs the certificates of one lab.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("directory", &self.directory).finish_non_exhaustive()
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

impl Authority {
    pub fn new(lab: &Lab) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = named("authority of the lab");
        let key = KeyPair::generate().expect("a key can be made");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority can sign itself");
        let authority = Self { issuer, directory: lab.state_dir() };
        fs::write(authority.file(), authority.issuer.pem()).expect("the certificate can be written");
        authority
    }

    /// The certificate that clients trust, in PEM form.
    pub fn file(&self) -> PathBuf {
        self.directory.join("authority.pem")
    }

    /// Starts nginx on a backend, with a certificate for these names that ends in this year. It serves the lab's files and says what
    /// it sees of a connection. `more` are further lines of its configuration; the certificate is in `certificate.pem` and `key.pem` of its directory.
    pub fn serve(&self, lab: &Lab, number: u8, names: &[&str], ends: i32, more: &str) -> Nginx {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("the names are names");
        // Another than the authority's, or OpenSSL takes the certificate for one that has signed itself.
        params.distinguished_name = named("server of the lab");
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(ends, 1, 1));
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("an authority can sign");

        let directory = nginx::directory(lab, number);
        let write =
            |name: &str, text: &str| fs::write(directory.join(name), text).expect("a file can be written");
        write("certificate.pem", &certificate.pem());
        write("key.pem", &key.serialize_pem());
        let (name, files) = (Host::Backend(number), peers::files_dir(lab));
        let servers = format!(
            r#"ssl_protocols TLSv1.2 TLSv1.3;
    ssl_certificate {directory}/certificate.pem;
    ssl_certificate_key {directory}/key.pem;
    server {{
        listen {PORT} ssl;
        add_header X-Instance {name} always;
        location / {{
            default_type text/plain;
            return 200 "instance: {name}
server-name: $ssl_server_name
peer: $remote_addr:$remote_port
";
        }}
        location /files/ {{ alias {files}/; }}
    }}
    {more}"#,
            directory = directory.display(),
            files = files.display(),
        );
        Nginx::start(lab, number, PORT, &servers)
    }

    /// A client's side of TLS over any stream.
    pub fn client<S: Read + Write>(
        &self,
        stream: S,
        name: &str,
        alpn: &[&str],
    ) -> StreamOwned<ClientConnection, S> {
        let mut trusted = RootCertStore::empty();
        trusted.add(CertificateDer::from(self.issuer.der().to_vec())).expect("an authority can be trusted");
        let mut config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("the provider has them")
                .with_root_certificates(trusted)
                .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).expect("the name is one");
        let tls = ClientConnection::new(Arc::new(config), name).expect("the settings fit together");
        StreamOwned::new(tls, stream)
    }
}
