//! The service's master: what it starts, starts again, tells and ends. What it starts here is this test binary, which plays front
//! and workers: see `stage.rs`.

mod commands;
mod death_and_restart;
mod listening;
mod stage;
mod the_end;
