//! Notifications: a notifier that is started by hand, on each engine, and receivers that answer as receivers do; and the API by which
//! subscribers look after themselves.

mod by_https;
mod by_rest;
mod mail_by_http;
mod receiver;
mod rest;
mod telling;
mod verifying;
