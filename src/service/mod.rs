//! The service: a front that speaks LMTP and hands messages out, workers that deliver them, runners that empty the file queue, a
//! timer for what is done at intervals, and a master that starts them all.

pub mod broker;
mod counters;
pub mod disk_figures;
pub mod front;
pub mod http;
pub mod inflight_message;
pub mod lmtp;
pub mod master;
pub mod master_link;
#[cfg(test)]
mod outage_tests;
pub mod runner;
pub mod shunt;
pub mod timer;
mod watchdog;
pub mod worker;

/// A configuration whose folders are in this one, in tests.
#[cfg(test)]
fn configured(folder: &std::path::Path) -> crate::config::Config {
    let text = format!(
        "[database]\nengine = \"postgresql\"\nhost = \"db.invalid\"\ndatabase = \"x\"\nuser = \"x\"\n\
         [imap]\nhost = \"imap.invalid\"\nuser = \"x\"\npassword_file = \"/nowhere\"\n\
         [serve]\nruntime_directory = {:?}\nstate_directory = {:?}\n",
        folder.join("run"),
        folder.join("state")
    );
    crate::config::Config::parse(&folder.join("config.toml"), &text).unwrap()
}
