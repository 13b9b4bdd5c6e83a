//! The service on one machine. Its front and workers, as processes of their own, with a client that speaks to them as a thin client
//! does; and its master, which here starts this test binary in place of them: see `stage.rs`.

mod confinement;
// Bugs to order are in the program that is built with the feature alone.
#[cfg(feature = "test-faults")]
mod crashing_messages;
mod front_to_worker;
mod garbage_on_sockets;
mod listening_sockets;
mod lmtp_server;
mod metrics_and_health;
mod queue_on_full_disks;
mod restarts_by_the_master;
mod runner;
mod runners_of_the_master;
mod service_commands;
mod shunted_messages;
mod shutdown;
mod thin_client;
mod timer;
mod worker_end;
