//! The service on one machine. Its front and workers, as processes of their own, with a client that speaks to them as a thin client
//! does; and its master, which here starts this test binary in place of them: see `stage.rs`.

mod a_worker_that_ends;
mod commands;
mod confined;
mod death_and_restart;
mod listening;
// Bugs to order are in the program that is built with the feature alone.
#[cfg(feature = "test-faults")]
mod messages_that_end_workers;
mod metrics_and_health;
mod nonsense;
mod runners;
mod stage;
mod support;
mod the_end;
mod the_thin_client;
mod the_timer;
mod what_ends_workers;
mod what_is_handed_over_is_delivered;
mod whole;
