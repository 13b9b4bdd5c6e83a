//! The program of the service: see [`maildrop_command::program::maildropd`].

use maildrop_command::program::maildropd;
use std::process::exit;

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    exit(i32::from(maildropd::run(&arguments)));
}
