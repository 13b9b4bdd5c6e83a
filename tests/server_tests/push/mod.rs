//! Notifications: a notifier that is started by hand, on each engine, and receivers that answer as receivers do; the API by which
//! subscribers look after themselves, and the page by which operators do.

mod a_changed_callback;
mod an_old_snapshot;
mod asked_for_meanwhile;
mod beside_others;
mod blind_copies;
mod by_check;
mod by_domain;
mod by_hand;
mod by_https;
mod by_rest;
mod by_schema;
mod by_schemathesis;
mod by_stats;
mod by_the_guide;
mod by_the_page;
mod fairness;
mod leases;
mod mail_by_http;
mod misbehaving_receivers;
mod real_kills_of_notifiers;
mod receiver;
mod recovering;
mod rest;
mod rights_and_limits;
mod secrets;
mod servers_that_stand_still_in_between;
mod shares;
mod source;
mod telling;
mod three_subscribers;
mod verifying;
mod very_many_at_once;
mod what_others_leave_behind;
mod written_down;
