//! The story of one delivery.
