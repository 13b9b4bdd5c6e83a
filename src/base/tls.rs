//! TLS, built only when a connection really uses it: rustls with ring. (aws-lc costs some 33 ms at each start for its
//! entropy, native OpenSSL some 54 ms to load its store.)

use std::path::Path;
use std::sync::Arc;
use thiserror::Error;

/// TLS cannot be set up: the CA file cannot be read, or the system has no roots.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct TlsError(String);

/// A client configuration that trusts the certificates in `ca_file` and no others, or the system's where no file is
/// given.
///
/// # Errors
/// [`TlsError`] names the file and what is wrong with it.
pub(crate) fn client_config(ca_file: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let bad = |detail: String| TlsError(format!("the CA file {}: {detail}", path.display()));
            for certificate in CertificateDer::pem_file_iter(path).map_err(|e| bad(e.to_string()))? {
                let certificate = certificate.map_err(|e| bad(e.to_string()))?;
                roots.add(certificate).map_err(|e| bad(e.to_string()))?;
            }
            if roots.is_empty() {
                return Err(bad("it holds no certificate".into()));
            }
        }
        None => {
            // One odd certificate in the system's store is no reason to trust none; an empty store is.
            let loaded = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(loaded.certs);
            if roots.is_empty() {
                return Err(TlsError(
                    "the system has no CA certificates: install ca-certificates, or name a ca_file".into(),
                ));
            }
        }
    }
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| TlsError(e.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
