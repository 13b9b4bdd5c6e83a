//! `lock key`: what the servers call a message's lock.

use crate::cli::say;
use crate::lock::{DEFAULT_NAMESPACE, LockName};
use clap::Args;
use sysexits::ExitCode;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command lock key '<123-abc@mail.google.com>'
  maildrop_command lock key --namespace 'maildrop exec' nightly-report

The SQL functions maildrop_lock_key(message_id) on PostgreSQL and maildrop_lock_name(message_id, namespace) \
on MySQL give the same. The locks of `lock exec` have the namespace of the site with ` exec` after it.")]
pub(in crate::cli) struct Arguments {
    /// The Message-ID, with or without its angle brackets
    message_id: String,
    /// The namespace: lock.namespace in the configuration
    #[arg(long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(super) fn run(Arguments { message_id, namespace, json }: &Arguments) -> ExitCode {
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
