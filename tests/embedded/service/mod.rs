//! The service on one machine. Its front and workers, as processes of their own, with a client that speaks to them as a thin client
//! does; and its master, which here starts this test binary in place of them: see `stage.rs`.

mod a_worker_that_ends;
mod commands;
mod death_and_restart;
mod listening;
mod runners;
mod stage;
mod support;
mod the_end;
mod the_thin_client;
mod what_is_handed_over_is_delivered;
