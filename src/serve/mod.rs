//! The service: a front that speaks LMTP and hands messages out, workers that deliver them, and a master that starts them all.
//! Uses all rooms up to `zmtp`.

pub mod broker;
pub mod front;
pub mod handed;
pub mod lmtp;
pub mod master;
mod place;
mod runtime_directory;
pub mod standing;
pub mod worker;

pub use place::Place;

use crate::config::Serve;
use std::path::Path;

/// `[serve]` for the directory of an embedded site: its sockets are in `DIR/run`.
fn embedded(directory: &Path) -> Serve {
    Serve { runtime_directory: directory.join("run"), state_directory: directory.join("state"), ..Serve::default() }
}
