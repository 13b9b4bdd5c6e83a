//! Who may connect, and how: whoever does can hand in mail for everybody.

use super::session::{Client, StartTls};
use crate::base::tls::{TlsError, server_config};
use crate::config::{Network, Serve};
use std::net::IpAddr;
use tokio_rustls::TlsAcceptor;

/// What the configuration allows.
pub(super) struct Access {
    clients: Vec<Network>,
    /// TLS for those who may connect as they are.
    tls: Option<TlsAcceptor>,
    /// TLS for those who have to show a certificate.
    certified: Option<TlsAcceptor>,
}

/// What one client gets.
pub(super) struct Admission {
    pub client: Client,
    pub tls: Option<TlsAcceptor>,
}

/// A client under TLS: whoever had to show a certificate has shown one.
pub(super) const SECURED: Client = Client { may_forward: true, starttls: StartTls::NotOffered };

impl Access {
    pub(super) fn new(serve: &Serve) -> Result<Self, TlsError> {
        let (tls, certified) = match (&serve.certificate_file, &serve.key_file) {
            (Some(certificate), Some(key)) => {
                let certified = serve.client_ca_file.as_deref().map(|ca| server_config(certificate, key, Some(ca)));
                (Some(server_config(certificate, key, None)?), certified.transpose()?)
            }
            _ => (None, None),
        };
        Ok(Self {
            clients: serve.lmtp_clients.clone(),
            tls: tls.map(TlsAcceptor::from),
            certified: certified.map(TlsAcceptor::from),
        })
    }

    /// For a client at this address; `None`: behind a unix socket, which the rights on its path have let it in to. Nothing is
    /// returned for one who may not connect.
    pub(super) fn admit(&self, address: Option<IpAddr>) -> Option<Admission> {
        let Some(address) = address else {
            return Some(Admission { client: SECURED, tls: None });
        };
        let address = address.to_canonical();
        if address.is_loopback() || self.clients.iter().any(|network| network.contains(address)) {
            let starttls = if self.tls.is_some() { StartTls::Offered } else { StartTls::NotOffered };
            let client = Client { may_forward: true, starttls };
            return Some(Admission { client, tls: self.tls.clone() });
        }
        let tls = self.certified.clone()?;
        Some(Admission { client: Client { may_forward: false, starttls: StartTls::Required }, tls: Some(tls) })
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
            |address: Option<&str>| access.admit(address.map(|text| text.parse().unwrap())).map(|it| it.client);
        for admitted in [None, Some("127.0.0.1"), Some("::1"), Some("::ffff:127.0.0.1"), Some("192.0.2.9")] {
            assert_eq!(client(admitted), Some(SECURED), "{admitted:?}");
        }
        for refused in ["192.0.3.1", "::ffff:192.0.3.1", "2001:db8::1"] {
            assert_eq!(client(Some(refused)), None, "{refused}");
        }
    }
}
