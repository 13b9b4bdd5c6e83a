//! The schema in `sql/<engine>/`: numbered migrations, applied in order by `migrate`.
//!
//! Migrations are additive, so that release N runs on the schema of N+1 while machines are upgraded one by one.

use crate::database::DatabaseError;
use sha2::{Digest, Sha256};

/// One file of `sql/<engine>/`.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number: the leading digits of its file's name.
    pub number: u32,
    /// The rest of its file's name, without `.sql`.
    pub name: &'static str,
    /// Its text.
    pub sql: &'static str,
    /// Whether the schema works without it: an extra that some servers refuse to ordinary roles. It is then left out,
    /// and `migrate` says so.
    pub optional: bool,
}

impl Migration {
    /// SHA-256 of its text, in lower-case hexadecimal: an applied migration is never edited.
    #[must_use]
    pub fn checksum(&self) -> String {
        crate::lock::hex(&Sha256::digest(self.sql.as_bytes()))
    }
}

/// A migration as the database remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its checksum when it was applied.
    pub checksum: String,
}

/// What became of applying one migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Application {
    /// It is applied and recorded.
    Done,
    /// An optional one that this server refused, and what it said.
    LeftOut(String),
}

/// A database whose schema can be looked at and brought up to date.
pub trait Schema {
    /// The migrations that this release knows for this engine, in order.
    fn known(&self) -> &'static [Migration];

    /// The migrations that were applied, in order; empty where there is no table of them yet.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn applied(&mut self) -> Result<Vec<Applied>, DatabaseError>;

    /// Takes the lock under which migrations are applied, waiting for whoever has it, and makes the table of them.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn lock_schema(&mut self) -> Result<(), DatabaseError>;

    /// Applies one migration and records it. Called under the schema's lock.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn apply(&mut self, migration: &Migration) -> Result<Application, DatabaseError>;

    /// Lets go of the schema's lock.
    ///
    /// # Errors
    /// [`DatabaseError`]
    fn unlock_schema(&mut self) -> Result<(), DatabaseError>;
}
