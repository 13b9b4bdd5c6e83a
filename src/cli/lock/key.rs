//! `lock key`: the servers' names of a message's lock.

use crate::cli::print;
use crate::delivery::lock_of_message_id;
use crate::lock::{DEFAULT_NAMESPACE, OF_PROGRAMS};
use crate::operations::lock_holder::lock_of_program;
use clap::Args;
use sysexits::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The Message-ID, with or without its angle brackets
    message_id: String,
    /// The namespace: lock.namespace in the configuration
    #[arg(long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(Arguments { message_id, namespace, json }: &Arguments) -> ExitCode {
    // In a program's name, no byte is replaced by X.
    let name = match namespace.strip_suffix(OF_PROGRAMS) {
        Some(site) => lock_of_program(site, message_id),
        None => lock_of_message_id(namespace, message_id.as_bytes()),
    };
    let (key, mysql_name) = (name.postgres_key(), name.mysql_name());
    // A bigint as text: many programs lose the last digits of JSON numbers above 2^53.
    let value = serde_json::json!({ "postgresql": key.to_string(), "mysql": mysql_name });
    print(*json, &value, || format!("postgresql  {key}\nmysql       {mysql_name}"));
    ExitCode::Ok
}
