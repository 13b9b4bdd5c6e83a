//! Each module of `src` uses modules of a lower layer of the table in `src/lib.rs`, and no others. The crate has no other borders, so
//! this test is what keeps the layers apart.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the table, with the number of their layer.
fn layers() -> Vec<(String, u8)> {
    let text = fs::read_to_string(source().join("lib.rs")).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("//! |")?.split('|').map(str::trim);
        let (layer, module) = (cells.next()?, cells.next()?);
        let module = module.strip_prefix("[`")?.strip_suffix("`]")?;
        Some((module.to_owned(), layer.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Each file of `src`, with its module.
fn files() -> Vec<(String, PathBuf)> {
    fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(path);
            }
        }
    }
    let mut all = Vec::new();
    walk(&source(), &mut all);
    let module = |path: PathBuf| {
        let relative = path.strip_prefix(source()).unwrap().to_owned();
        let first = relative.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        (first.trim_end_matches(".rs").to_owned(), path)
    };
    all.into_iter().map(module).filter(|(module, _)| !matches!(module.as_str(), "lib" | "main" | "bin")).collect()
}

/// What is built into the program: no comments, and none of the tests at the end of a file or in one of their own.
fn code(path: &Path) -> String {
    if path.file_stem().is_some_and(|stem| stem == "tests" || stem.to_string_lossy().ends_with("_tests")) {
        return String::new();
    }
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The modules that a piece of code names: `crate::module`, also in `use crate::{module::…, other::…}`.
fn used(code: &str) -> BTreeSet<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut modules = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::`, `pub(in crate::…)`: the same modules.
        let rest = &code[at + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            modules.insert(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut item = String::new();
        for c in list.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    modules.insert(word(item.trim()));
                    item.clear();
                    continue;
                }
                _ => {}
            }
            item.push(c);
        }
        modules.insert(word(item.trim()));
    }
    modules
}

#[test]
fn the_table_names_each_module_and_no_other() {
    let in_the_table: BTreeSet<String> = layers().into_iter().map(|(module, _)| module).collect();
    let in_src: BTreeSet<String> = files().into_iter().map(|(module, _)| module).collect();
    assert_eq!(in_the_table, in_src);
    assert!(in_src.len() <= 20, "{} top-level modules", in_src.len());
}

#[test]
fn each_module_uses_lower_layers_and_no_others() {
    let layers = layers();
    let layer = |module: &str| layers.iter().find(|(known, _)| known == module).map(|(_, layer)| *layer);
    let mut wrong = Vec::new();
    for (module, path) in files() {
        for other in used(&code(&path)) {
            let (Some(mine), Some(its)) = (layer(&module), layer(&other)) else { continue };
            if other != module && its >= mine {
                wrong.push(format!("{}: {module} uses {other}", path.strip_prefix(source()).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_is_printed_except_by_the_command_lines() {
    const PRINTS: [&str; 8] =
        ["print!", "println!", "dbg!", "stdout()", "stderr()", "complain(", "complain_as(", "IsTerminal"];
    // `base/terminal.rs` has `complain`, for them.
    let may =
        |module: &str, path: &Path| matches!(module, "cli" | "pipe" | "program") || path.ends_with("base/terminal.rs");
    let mut wrong = Vec::new();
    for (_, path) in files().into_iter().filter(|(module, path)| !may(module, path)) {
        let code = code(&path);
        wrong.extend(
            PRINTS.iter().filter(|word| code.contains(*word)).map(|word| format!("{}: {word}", path.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_statement_on_the_ledgers_tables_is_in_the_ledger() {
    const TABLES: [&str; 22] = [
        "api_tokens",
        "attempts",
        "messages",
        "message_sources",
        "copies",
        "addresses",
        "unknown_recipients",
        "failures",
        "login_checks",
        "epochs",
        "subscriptions",
        "subscription_queues",
        "outbox",
        "events",
        "notifications",
        "notification_attempts",
        "web_logins",
        "web_sessions",
        "operations",
        "submissions",
        "message_addresses",
        "message_addresses_read",
    ];
    // `check` and `quickstart` tell people what to run.
    const SHOWN_TO_PEOPLE: [&str; 2] = ["operations/check/database.rs", "operations/quickstart/database.rs"];
    let mut wrong = Vec::new();
    for (module, path) in files() {
        let elsewhere = SHOWN_TO_PEOPLE.iter().any(|known| path.ends_with(known));
        if module == "ledger" || elsewhere {
            continue;
        }
        // One line, so that a statement may go over several.
        let code = code(&path).split_whitespace().collect::<Vec<_>>().join(" ");
        for table in TABLES {
            let asked = ["FROM", "JOIN", "INTO", "UPDATE"].map(|word| format!("{word} {table} "));
            wrong.extend(
                asked.iter().filter(|asked| code.contains(*asked)).map(|asked| format!("{}: {asked}", path.display())),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_module_begins_by_saying_what_it_is_for() {
    for (module, _) in layers() {
        let text = fs::read_to_string(source().join(&module).join("mod.rs")).unwrap();
        assert!(text.starts_with("//! "), "{module}");
    }
}

#[test]
fn names_in_braces_and_paths_are_read() {
    let modules = |code| used(code).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(modules("use crate::lock::{A, B}; crate::base::hex::encode(x)"), "base lock");
    assert_eq!(modules("use crate::{imap::{self, X}, message};"), "imap message");
}
