//! The story of one delivery.

pub(crate) mod verdict;

pub use verdict::{StatusDetail, Verdict, report};
