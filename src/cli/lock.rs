//! `lock`: the named lock, for people and other programs.

use super::say;
use crate::lock::{DEFAULT_NAMESPACE, LockName};
use clap::Subcommand;
use sysexits::ExitCode;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print the PostgreSQL key and the MySQL name of a Message-ID's lock
    #[command(after_help = "\
Example:
  maildrop_command lock key '<123-abc@mail.google.com>'

The SQL functions maildrop_lock_key(message_id) on PostgreSQL and maildrop_lock_name(message_id, namespace) \
on MySQL give the same.")]
    Key {
        /// The Message-ID, with or without its angle brackets
        message_id: String,
        /// The namespace: lock.namespace in the configuration
        #[arg(long, default_value = DEFAULT_NAMESPACE)]
        namespace: String,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(command: &Command) -> ExitCode {
    let Command::Key { message_id, namespace, json } = command;
    let name = LockName::new(namespace, message_id.as_bytes());
    let (key, mysql_name) = (name.postgres_key(), name.mysql_name());
    if *json {
        // A bigint as text: JSON numbers lose their last digits above 2^53 in many programs.
        say(&serde_json::json!({ "postgresql": key.to_string(), "mysql": mysql_name }).to_string());
    } else {
        say(&format!("postgresql  {key}\nmysql       {mysql_name}"));
    }
    ExitCode::Ok
}
