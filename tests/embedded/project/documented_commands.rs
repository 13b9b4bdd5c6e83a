//! The commands in the pages for people: each is one that the program knows, and is run by a test or listed with the reason
//! why not (tests/support/pages.rs). Those that need servers are run by tests/server_tests.

use crate::pages::{
    Line, QUICKSTART, Treatment, blocks, command_lines, commands_in_the_text, ours, pages, read, root, spans,
    treatment, words,
};
use clap::error::ErrorKind;
use maildrop_command::config::Config;
use std::path::Path;
use std::process::Command;

#[test]
fn each_command_line_of_the_program_is_one_that_it_knows() {
    let shown = command_lines();
    let (mut wrong, mut known) = (Vec::new(), 0);
    for (Line { place, text }, whole) in
        shown.iter().map(|line| (line, true)).chain(commands_in_the_text().iter().map(|line| (line, false)))
    {
        for command in ours(text).iter().filter(|command| command.last().is_some_and(|word| word != "…")) {
            match maildrop_command::program::maildrop_command::definition().try_get_matches_from(command) {
                Ok(_) => known += 1,
                // The text may name a command without what it is to work on.
                Err(error) if !whole && error.kind() == ErrorKind::MissingRequiredArgument => known += 1,
                Err(error) if !whole && error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                    known += 1
                }
                Err(error) => wrong.push(format!("{place}: `{text}`: {}", error.kind())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(known > 40, "only {known} of them were found");
}

#[test]
fn each_example_in_the_help_is_one_that_the_program_knows() {
    let (mut wrong, mut known, mut left) =
        (Vec::new(), 0, vec![maildrop_command::program::maildrop_command::definition()]);
    while let Some(command) = left.pop() {
        left.extend(command.get_subcommands().cloned());
        let help = [command.get_after_help(), command.get_after_long_help()];
        for help in help.into_iter().flatten().map(ToString::to_string) {
            for line in help.replace("\\\n", " ").lines() {
                // What it does stands beside it, in a column.
                let line = line.trim_start().split("   ").next().unwrap_or_default();
                for example in ours(line) {
                    match maildrop_command::program::maildrop_command::definition().try_get_matches_from(&example) {
                        Ok(_) => known += 1,
                        Err(error) => wrong.push(format!("{}: `{line}`: {}", command.get_name(), error.kind())),
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(known > 20, "only {known} of them were found");
}

#[test]
fn each_command_is_run_by_a_test_or_listed_with_the_reason_why_not() {
    let mut lines = command_lines();
    lines.extend(commands_in_the_text());
    let forgotten: Vec<String> = lines
        .iter()
        .filter(|line| treatment(&line.text).is_none())
        .map(|Line { place, text }| format!("{place}: `{text}`"))
        .collect();
    assert!(forgotten.is_empty(), "no test runs, and tests/support/pages.rs does not list:\n{}", forgotten.join("\n"));
}

#[test]
fn what_is_listed_stands_in_a_page() {
    let mut lines = command_lines();
    lines.extend(commands_in_the_text());
    let there = |written: &&&str| !lines.iter().any(|line| line.text == **written);
    let listed: Vec<&str> = crate::pages::listed();
    let gone: Vec<&&str> = listed.iter().filter(there).collect();
    assert!(gone.is_empty(), "tests/support/pages.rs lists what no page has: {gone:?}");
}

#[test]
fn each_example_says_what_it_is_written_in() {
    for block in blocks() {
        // `sh` and `sql` are run; `toml` is read as a configuration. `text` is what a program prints. Dovecot's settings are those of
        // tests/images/start/dovecot.
        // `python` and `rust` are run by tests/server_tests/notifications, and `ini` is what PgBouncer is given by tests/server_tests/failover.
        let known = ["sh", "sql", "toml", "text", "mermaid", "dovecot", "ini", "python", "rust"];
        assert!(known.contains(&block.language.as_str()), "{}: `{}`", block.place, block.language);
        // tests/package/first_hour takes them out of docs/notifications.md: for these engines, or for all.
        let run_whole = ["first_hour", "first_hour_back"].map(|which| {
            ["", " postgresql", " mysql mariadb", " mysql", " mariadb"].map(|engines| format!("{which}{engines}"))
        });
        let run_whole = run_whole.concat().contains(&block.run_by) && block.place.starts_with("docs/notifications.md:");
        assert!(block.run_by.is_empty() || run_whole, "{}: `{}`", block.place, block.run_by);
    }
    for page in pages() {
        let mut before = "";
        let prose = read(&page).0;
        for line in prose.lines() {
            // Only fenced examples are found.
            assert!(!(before.is_empty() && line.starts_with("    ")), "{}: not fenced: {line}", page.display());
            before = line;
        }
    }
}

/// An example of another section needs no `[imap]`: that is added.
#[test]
fn each_example_of_a_configuration_is_one() {
    let imap = "[imap]\nhost = \"localhost\"\nuser = \"service\"\npassword_file = \"/etc/imap.password\"\n";
    let mut examples = 0;
    for block in blocks().into_iter().filter(|block| block.language == "toml") {
        let mut text = block.lines.join("\n");
        if !block.lines.iter().any(|line| line == "[imap]") {
            text = format!("{text}\n{imap}");
        }
        Config::parse(block.place.as_ref(), &text).unwrap_or_else(|error| panic!("{}: {error}", block.place));
        examples += 1;
    }
    assert!(examples > 0);
}

/// `tests/run -- FILTER…` in a page runs something, and its options are those that it has.
#[test]
fn what_a_page_asks_the_tests_for_is_there() {
    let mut names = Vec::new();
    for folder in ["tests", "src"] {
        names_below(&root().join(folder), &mut names);
    }
    let usage = std::fs::read_to_string(root().join("tests/run")).unwrap();
    // In the text `FILTER` stands for any.
    let in_the_text =
        spans().into_iter().filter(|line| line.text.starts_with("tests/run ") && !line.text.contains("FILTER"));
    for Line { place, text } in command_lines().into_iter().chain(in_the_text) {
        if treatment(&text) != Some(Treatment::RunsTests) {
            continue;
        }
        for command in words(&text) {
            let after = command.iter().skip_while(|word| *word != "tests/run").skip(1);
            let (filters, options): (Vec<_>, Vec<_>) = after.partition(|word| !word.starts_with("--"));
            for option in options.into_iter().filter(|option| *option != "--") {
                assert!(usage.contains(&format!("    {option})")), "{place}: `{text}`: no {option}");
            }
            for filter in filters {
                let name = filter.trim_end_matches("::");
                assert!(names.iter().any(|known| known.contains(name)), "{place}: `{text}`: no test has {name} in it");
            }
        }
    }
}

/// The names of all folders and source files below a folder, and of all functions in them.
fn names_below(folder: &Path, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
            names_below(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
            let text = std::fs::read_to_string(&path).unwrap();
            let functions = text.lines().filter_map(|line| line.trim_start().strip_prefix("fn ")?.split('(').next());
            names.extend(functions.map(str::to_owned));
        }
    }
}

/// README.md, "Try it", as it stands there; only that the program is built already, and that the directory is another.
#[test]
fn the_readme_is_tried_out() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("maildrop-demo");
    let here = |text: &str| {
        text.replace("cargo run --release -- ", "maildrop_command ")
            .replace("/tmp/maildrop-demo", directory.to_str().unwrap())
    };
    let lines: Vec<Line> = command_lines()
        .into_iter()
        .filter(|line| treatment(&line.text) == Some(Treatment::RunWithoutServers))
        .collect();
    assert_eq!(lines.len(), QUICKSTART.len());
    let deliver = here(&lines[0].text);
    assert!(deliver.starts_with("maildrop_command --embedded "), "{deliver}");

    let output_text = shell(&deliver);
    assert!(output_text.starts_with("2.0.0 "), "{output_text}");
    let found = shell(&here(&lines[1].text));
    let inbox = |address: &str| format!("{}/{address}/", directory.display());
    assert!(found.lines().any(|file| file.starts_with(&inbox("scuba@mail.axial.net"))), "{found}");
    // "Run it again: it reports that the copy is already there."
    let printed = shell(&deliver);
    assert!(printed.contains("already there"), "{printed}");
    // "Deliver the message to lisa@gmail.com, so that Lisa is local; then to doug@mail.axial.net. Lisa's Sent mailbox now has
    // exactly one copy."
    for recipient in ["lisa@gmail.com", "doug@mail.axial.net"] {
        let output = shell(&deliver.replace("--recipient scuba@mail.axial.net", &format!("--recipient {recipient}")));
        assert!(output.starts_with("2.0.0 "), "{output}");
    }
    let found = shell(&here(&lines[1].text));
    let sent = found.lines().filter(|file| file.starts_with(&inbox("lisa@gmail.com")) && file.contains("Sent/cur/"));
    assert_eq!(sent.count(), 1, "{found}");
}

/// Runs a line in the project's folder, with the program on the path.
fn shell(line: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_maildrop_command")).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", program.display());
    let output =
        Command::new("/bin/sh").args(["-ec", line]).current_dir(root()).env_clear().env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
