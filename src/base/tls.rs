//! TLS with rustls and ring, set up only when a connection uses it. (At each start, aws-lc takes about 33 ms for its entropy.
//! Native OpenSSL takes about 54 ms to load its store.)

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use std::path::Path;
use std::sync::Arc;
use thiserror::Error;

/// Why TLS cannot be set up: a file cannot be read or used, or the system has no CA certificates.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct TlsError(String);

/// A client configuration that trusts only the certificates in `ca_file`, or those of the system if there is no file.
///
/// # Errors
/// If the file cannot be read or has no usable certificate, or if the system has none. The error names the file and the problem.
pub(crate) fn client_config(ca_file: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    let roots = match ca_file {
        Some(path) => trusted(path)?,
        None => {
            // One unusable certificate in the system's store is no reason to trust none; an empty store is an error.
            let loaded = rustls_native_certs::load_native_certs();
            let mut roots = rustls::RootCertStore::empty();
            roots.add_parsable_certificates(loaded.certs);
            if roots.is_empty() {
                return Err(TlsError(
                    "the system has no CA certificates: install ca-certificates, or name a ca_file".into(),
                ));
            }
            roots
        }
    };
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| TlsError(e.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A server configuration with this certificate chain. With a `client_ca`, a client must show a certificate that a CA of that
/// file has signed.
///
/// # Errors
/// If one of the files cannot be read or used. The error names the file and the problem.
pub(crate) fn server_config(
    certificate: &Path,
    key: &Path,
    client_ca: Option<&Path>,
) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let chain = certificates("the certificate", certificate)?;
    let bad_key = |detail: String| TlsError(format!("the key {}: {detail}", key.display()));
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| bad_key(e.to_string()))?;
    let builder = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| TlsError(e.to_string()))?;
    let builder = match client_ca {
        Some(path) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted(path)?), provider()).build();
            builder.with_client_cert_verifier(verifier.map_err(|e| TlsError(format!("{}: {e}", path.display())))?)
        }
        None => builder.with_no_client_auth(),
    };
    builder.with_single_cert(chain, private).map(Arc::new).map_err(|e| bad_key(e.to_string()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The CA certificates of a file; there is at least one.
fn trusted(path: &Path) -> Result<rustls::RootCertStore, TlsError> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates("the CA file", path)? {
        roots.add(certificate).map_err(|e| TlsError(format!("the CA file {}: {e}", path.display())))?;
    }
    Ok(roots)
}

fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |detail: String| TlsError(format!("{what} {}: {detail}", path.display()));
    let read = CertificateDer::pem_file_iter(path).map_err(|e| bad(e.to_string()))?;
    let certificates = read.collect::<Result<Vec<_>, _>>().map_err(|e| bad(e.to_string()))?;
    if certificates.is_empty() { Err(bad("it holds no certificate".into())) } else { Ok(certificates) }
}
