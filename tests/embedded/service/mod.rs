//! The service on one machine: a front and workers as processes of their own, and a client that speaks to them as a thin client does.

mod a_worker_that_ends;
mod support;
mod the_thin_client;
mod what_is_handed_over_is_delivered;
