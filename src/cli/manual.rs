//! `completions` and `man`: made from the command line's own definition. The package takes both from here.

use super::{Ended, fail, help, print_bytes};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::PathBuf;
use sysexits::ExitCode;

#[derive(Debug, Args)]
#[command(after_help = help("completions"))]
pub(crate) struct CompletionsArguments {
    /// For this shell
    shell: Shell,
    /// Of this program
    #[arg(default_value = "maildrop_command", value_parser = ["maildrop_command", "maildropd"])]
    program: String,
}

#[derive(Debug, Args)]
#[command(after_help = help("man"))]
pub(crate) struct ManArguments {
    /// Write the pages of all subcommands and of maildropd into this folder, and print nothing
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Prints the completions of `command` or `service` for one shell.
pub(crate) fn complete(arguments: &CompletionsArguments, [command, service]: [Command; 2]) -> Ended {
    let CompletionsArguments { shell, program } = arguments;
    let mut definition = if program == service.get_name() { service } else { command };
    // clap_complete panics if it cannot write: it writes into memory.
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut definition, program, &mut script);
    print_bytes(&script);
    Ok(ExitCode::Ok)
}

/// Prints the manual page of `command`, or writes the pages of all its subcommands and of `service`.
pub(crate) fn man(arguments: &ManArguments, [command, service]: [Command; 2]) -> Ended {
    let command = without_help(command);
    let written = match &arguments.folder {
        None => {
            let mut page = Vec::new();
            Man::new(command).render(&mut page).map(|()| print_bytes(&page))
        }
        // Section 8 is for what an administrator runs.
        Some(folder) => std::fs::create_dir_all(folder)
            .and_then(|()| Man::new(service).section("8").generate_to(folder))
            .and_then(|_| clap_mangen::generate_to(command, folder)),
    };
    let name = || arguments.folder.as_deref().unwrap_or("the page".as_ref()).display();
    written.map_err(|error| fail(ExitCode::CantCreat, format!("{}: {error}", name())))?;
    Ok(ExitCode::Ok)
}

/// `help lock exec` needs no page of its own.
fn without_help(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    names
        .into_iter()
        .fold(command.disable_help_subcommand(true), |command, name| command.mut_subcommand(name, without_help))
}
