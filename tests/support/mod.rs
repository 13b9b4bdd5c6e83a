//! What every test of real servers needs to know: where they are. `tests/run` starts them.
#![allow(dead_code, reason = "every test target uses a part of it")]

pub mod browser;
pub mod check_report;
pub mod counting_proxy;
pub mod crawl;
pub mod database;
pub mod imap;
pub mod imap_accounts;
pub mod imap_server;
pub mod ledger_history;
pub mod lmtp;
pub mod mail_hosts;
pub mod not_run;
pub mod outage;
pub mod own_mounts;
pub mod own_server;
pub mod pages;
pub mod peers;
pub mod postfix;
pub mod postgres;
pub mod program;
pub mod python;
pub mod queue_of_tests;
pub mod receivers;
pub mod replay;
pub mod run;
#[macro_use]
pub mod site_fixture;
pub mod event_rows;
pub mod service;
pub mod service_run;
pub mod smtp;
pub mod standby;
pub mod terminal;
pub mod two_addresses;
#[path = "visitor.rs"]
pub mod visitor;
pub mod wire;

use not_run::did_not_run;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A variable of the test servers: from the environment, else from the file that `tests/servers/up` wrote
/// (`$MAILDROP_TEST_SERVERS`, or `target/tests/servers.env`).
pub fn env(name: &str) -> String {
    env_if_there(name).unwrap_or_else(|| {
        panic!(
            "{name} is neither in the environment nor in {}: start the servers with `tests/servers/up`",
            file().display()
        )
    })
}

/// The same, where the test can do without it.
pub fn env_if_there(name: &str) -> Option<String> {
    static FILE: OnceLock<Vec<(String, String)>> = OnceLock::new();
    let lines = FILE.get_or_init(|| {
        let text = std::fs::read_to_string(file()).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.strip_prefix("export ")?.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    });
    std::env::var(name).ok().or_else(|| lines.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()))
}

/// The address of a test server: `server("POSTGRES17")`.
///
/// Where this machine cannot have that server (`tests/run` in plain mode), the test ends here, and is listed as one that
/// did not run, which is a failure in CI.
pub fn server(name: &str) -> String {
    let variable = format!("MAILDROP_TEST_{name}");
    match std::env::var_os("MAILDROP_TEST_NOT_RUN") {
        Some(list) if env_if_there(&variable).is_none() => did_not_run(name, Path::new(&list)),
        _ => env(&variable),
    }
}

/// Ends a test that this machine, or this user, has no `means` for (`ROOT`): it is listed as one that did not run.
pub fn cannot_run(means: &str) -> ! {
    let list = std::env::var_os("MAILDROP_TEST_NOT_RUN").unwrap_or_else(|| panic!("it needs {means}"));
    did_not_run(means, Path::new(&list))
}

/// The container that a test server runs in, for a test that wants another of its kind. Where servers are plain
/// processes, the test ends here, as if it had asked for a server `CONTAINERS`.
pub fn container(name: &str) -> String {
    server(name);
    match (env_if_there(&format!("MAILDROP_TEST_{name}_CONTAINER")), std::env::var_os("MAILDROP_TEST_NOT_RUN")) {
        (Some(container), _) => container,
        (None, Some(list)) => did_not_run("CONTAINERS", Path::new(&list)),
        (None, None) => panic!("{name} runs in no container: this test makes servers of its own, to kill them"),
    }
}

/// Whether a server may be of another version than its name says: in plain mode this machine's packages stand in.
pub fn another_version_may_stand_in() -> bool {
    env_if_there("MAILDROP_TEST_MODE").as_deref() == Some("plain")
}

/// An address of the form `host` or `host:port`, divided.
pub fn host_and_port(address: String, default_port: u16) -> (String, u16) {
    match address.rsplit_once(':') {
        Some((host, port)) => (host.to_owned(), port.parse().expect("a port")),
        None => (address, default_port),
    }
}

fn file() -> PathBuf {
    std::env::var_os("MAILDROP_TEST_SERVERS")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/tests/servers.env")), PathBuf::from)
}
