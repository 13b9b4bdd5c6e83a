//! The service: a front that speaks LMTP and hands messages out, workers that deliver them, and a master that starts them all.
//! Uses all rooms up to `zmtp`.

pub mod handed;
pub mod master;
