//! Writes the manual pages and the completions of shells, from the command line's own definition: `manuals FOLDER`.
//! tests/package/build runs it.

use clap::Command;
use clap_complete::Shell;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("manuals FOLDER")?;
    let folder = Path::new(&folder);
    let (manuals, completions) = (folder.join("man"), folder.join("completions"));
    std::fs::create_dir_all(&manuals)?;
    std::fs::create_dir_all(&completions)?;
    let mut definition = maildrop_command::program::maildrop_command::definition();
    let mut service = maildrop_command::program::maildropd::definition();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut definition, "maildrop_command", &completions)?;
        clap_complete::generate_to(shell, &mut service, "maildropd", &completions)?;
    }
    // Section 8 is for what an administrator runs.
    let page = clap_mangen::Man::new(maildrop_command::program::maildropd::definition()).section("8");
    page.generate_to(&manuals)?;
    // Anew: the completions have made subcommands of `help` and all that it helps with.
    clap_mangen::generate_to(without_help(maildrop_command::program::maildrop_command::definition()), &manuals)?;
    Ok(())
}

/// `help lock exec` needs no page of its own.
fn without_help(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    names
        .into_iter()
        .fold(command.disable_help_subcommand(true), |command, name| command.mut_subcommand(name, without_help))
}
