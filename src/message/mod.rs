//! A message: its bytes, what can be read in them, and its identity.

mod identity;

pub use identity::{ContentDigest, Identity};
