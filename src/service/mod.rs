//! The service. A front accepts LMTP and passes messages to workers, which deliver them. Runners empty the file queue, and a
//! timer runs periodic tasks. A master starts all of them.

pub mod broker;
mod counters;
pub mod disk_figures;
pub mod error;
pub mod front;
pub mod http;
pub mod inflight_message;
pub mod lmtp;
pub mod master;
pub mod master_link;
#[cfg(test)]
mod outage_tests;
mod process_watchdog;
pub mod runner;
pub mod shunt;
pub mod timer;
pub mod worker;

/// A configuration for tests, with its folders in `folder`.
#[cfg(test)]
fn configured(folder: &std::path::Path) -> crate::config::Config {
    let text = format!(
        "[database]\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
         [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nowhere\"\n\
         [service]\nruntime_directory = {:?}\nstate_directory = {:?}\n",
        folder.join("run"),
        folder.join("state")
    );
    crate::config::Config::parse(&folder.join("config.toml"), &text).unwrap()
}
