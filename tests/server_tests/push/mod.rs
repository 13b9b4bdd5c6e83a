//! Notifications: a notifier that is started by hand, on each engine, and receivers that answer as receivers do.

mod by_https;
mod receiver;
mod telling;
mod verifying;
