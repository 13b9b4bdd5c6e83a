//! Which clients may connect, and how. A client that may connect can submit mail for every recipient.

use super::session::StartTls;
use crate::base::tls::{TlsError, server_config};
use crate::config::{Network, Service};
use std::net::IpAddr;
use tokio_rustls::TlsAcceptor;

/// What the configuration allows.
pub(super) struct Access {
    clients: Vec<Network>,
    /// TLS for clients that may connect without a certificate.
    tls: Option<TlsAcceptor>,
    /// TLS for clients that must present a certificate.
    certified: Option<TlsAcceptor>,
}

/// The conditions for one client.
pub(super) struct Admission {
    pub starttls: StartTls,
    pub tls: Option<TlsAcceptor>,
}

impl Access {
    pub(super) fn new(service: &Service) -> Result<Self, TlsError> {
        let (tls, certified) = match (&service.certificate_file, &service.key_file) {
            (Some(certificate), Some(key)) => {
                let certified = service.client_ca_file.as_deref().map(|ca| server_config(certificate, key, Some(ca)));
                (Some(server_config(certificate, key, None)?), certified.transpose()?)
            }
            _ => (None, None),
        };
        Ok(Self {
            clients: service.lmtp_clients.clone(),
            tls: tls.map(TlsAcceptor::from),
            certified: certified.map(TlsAcceptor::from),
        })
    }

    /// The conditions for a client at this address; `None` if the client may not connect. `address` is `None` for a unix socket,
    /// whose permissions have admitted the client.
    pub(super) fn admit(&self, address: Option<IpAddr>) -> Option<Admission> {
        let Some(address) = address else {
            return Some(Admission { starttls: StartTls::NotOffered, tls: None });
        };
        let address = address.to_canonical();
        if address.is_loopback() || self.clients.iter().any(|network| network.contains(address)) {
            let starttls = if self.tls.is_some() { StartTls::Offered } else { StartTls::NotOffered };
            return Some(Admission { starttls, tls: self.tls.clone() });
        }
        let tls = self.certified.clone()?;
        Some(Admission { starttls: StartTls::Required, tls: Some(tls) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_another_machine_only_those_may_connect_who_are_named() {
        let clients = vec!["192.0.2.0/24".parse().unwrap()];
        let access = Access { clients, tls: None, certified: None };
        let client =
            |address: Option<&str>| access.admit(address.map(|text| text.parse().unwrap())).map(|it| it.starttls);
        for admitted in [None, Some("127.0.0.1"), Some("::1"), Some("::ffff:127.0.0.1"), Some("192.0.2.9")] {
            assert_eq!(client(admitted), Some(StartTls::NotOffered), "{admitted:?}");
        }
        for refused in ["192.0.3.1", "::ffff:192.0.3.1", "2001:db8::1"] {
            assert_eq!(client(Some(refused)), None, "{refused}");
        }
    }

    const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/imap_peer.pem");

    fn certified() -> Access {
        let file = || Some(CERTIFICATE.into());
        let service =
            Service { certificate_file: file(), key_file: file(), client_ca_file: file(), ..Service::default() };
        Access::new(&service).unwrap()
    }

    #[test]
    fn who_is_not_named_has_to_show_a_certificate_and_may_say_little_before() {
        let stranger = certified().admit(Some("192.0.3.1".parse().unwrap())).unwrap();
        assert_eq!(stranger.starttls, StartTls::Required);
        let neighbour = certified().admit(Some("127.0.0.1".parse().unwrap())).unwrap();
        assert_eq!(neighbour.starttls, StartTls::Offered);
    }

    #[tokio::test]
    async fn only_a_certificate_of_that_ca_lets_a_stranger_in() {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        for (address, shows, admitted) in
            [("192.0.3.1", true, true), ("192.0.3.1", false, false), ("127.0.0.1", false, true)]
        {
            let tls = certified().admit(Some(address.parse().unwrap())).unwrap().tls.unwrap();
            let (ours, theirs) = tokio::io::duplex(100_000);
            let mut roots = rustls::RootCertStore::empty();
            let certificate = CertificateDer::from_pem_file(CERTIFICATE).unwrap();
            roots.add(certificate.clone()).unwrap();
            let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
            let config = rustls::ClientConfig::builder_with_provider(provider);
            let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
            let config = if shows {
                let key = PrivateKeyDer::from_pem_file(CERTIFICATE).unwrap();
                config.with_client_auth_cert(vec![certificate], key).unwrap()
            } else {
                config.with_no_client_auth()
            };
            let client = tokio::spawn(async move {
                let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
                let mut stream = connector.connect("127.0.0.1".try_into().unwrap(), theirs).await.unwrap();
                let _ = stream.read_u8().await;
            });
            let accepted = tls.accept(ours).await;
            assert_eq!(accepted.is_ok(), admitted, "{address} {shows}: {:?}", accepted.err());
            if let Ok(mut stream) = accepted {
                stream.write_u8(b'x').await.unwrap();
                stream.shutdown().await.unwrap();
            }
            client.await.unwrap();
        }
    }

    #[test]
    fn a_certificate_that_cannot_be_read_is_named() {
        let service = |certificate: &str, key: &str, ca: &str| Service {
            certificate_file: Some(certificate.into()),
            key_file: Some(key.into()),
            client_ca_file: Some(ca.into()),
            ..Service::default()
        };
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for (service, said) in [
            (service("/nonexistent", CERTIFICATE, CERTIFICATE), "the certificate /nonexistent: "),
            (service(here, CERTIFICATE, CERTIFICATE), "it holds no certificate"),
            (service(CERTIFICATE, here, CERTIFICATE), "the key "),
            (service(CERTIFICATE, CERTIFICATE, here), "the CA file "),
        ] {
            let error = Access::new(&service).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
