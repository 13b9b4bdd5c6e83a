//! The service's program: see [`maildrop_command::service`].

use maildrop_command::service;
use std::process::exit;

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    exit(i32::from(service::run(&arguments)));
}
