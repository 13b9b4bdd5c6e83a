//! Where the test servers are.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The value of a variable: from the real environment, else from the file of test servers that `$MAILDROP_TEST_SERVERS`
/// names (`target/tests/servers.env` where it is not set).
pub fn env(name: &str) -> String {
    static FILE: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
        let text = std::fs::read_to_string(servers_file()).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix("export ")?.split_once('='));
        lines.map(|(name, value)| (name.to_owned(), value.trim_matches(['"', '\'']).to_owned())).collect()
    });
    std::env::var(name).ok().or_else(|| FILE.get(name).cloned()).unwrap_or_else(|| {
        panic!("{name} is neither in the environment nor in {}: start the test servers", servers_file().display())
    })
}

/// The address of a test server: `server("POSTGRES17")`.
pub fn server(name: &str) -> String {
    env(&format!("MAILDROP_TEST_{name}"))
}

fn servers_file() -> PathBuf {
    std::env::var_os("MAILDROP_TEST_SERVERS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/tests/servers.env"), PathBuf::from)
}
