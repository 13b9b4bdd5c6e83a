//! In place of the crate `webpki-roots`, whose certificates the crate `mysql` trusts beside those of the file that it is given: a
//! server is believed that any authority of Mozilla's vouches for, whatever `database.ca_file` says. Cargo.toml puts this there (`[patch]`),
//! and src/database/mysql/connect.rs is compiled with nothing else.
#![forbid(unsafe_code)]

use rustls_pki_types::TrustAnchor;

/// None.
pub const TLS_SERVER_ROOTS: &[TrustAnchor<'static>] = &[];
