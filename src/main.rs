//! Arguments in, verdict out.
//!
//! Postfix *bounces* nearly every exit status but 75 (`src/global/sys_exits.c`): 101 of a panic, 2 of a usage error, 1
//! of a `main` that returns an error. So this is the one place that ends the process, and whatever is not a clear
//! outcome ends it with 75 when a message is on its way.

use maildrop_command::program::maildrop_command;
use std::process::exit;

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    exit(i32::from(maildrop_command::run(&arguments)));
}
