//! The program that Postfix runs: arguments in, exit status out.
//!
//! Postfix *bounces* on nearly every exit status except 75 (`src/global/sys_exits.c`): 101 of a panic, 2 of a usage error, 1 of a
//! `main` that returns an error. So only this function ends the process. Unless the outcome is clear, the status is 75 while a
//! message is being delivered.

use maildrop_command::program::maildrop_command;
use std::process::exit;

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    exit(i32::from(maildrop_command::run(&arguments)));
}
