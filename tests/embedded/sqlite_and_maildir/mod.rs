//! The embedded engine: SQLite, file locks and Maildirs under one directory.

mod file_lock;
mod maildir_append;
mod maildir_of_each_address;
mod maildir_reading;
mod sqlite_ledger;
mod sqlite_sessions;
