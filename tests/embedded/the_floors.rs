//! Who may use whom: each room of `src` uses rooms above its own line of the map in `src/lib.rs`, and no others. A border of
//! this kind is as firm as a crate's, for as long as somebody looks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms in the order of the map, with the number of their floor.
fn map() -> Vec<(String, String)> {
    let text = fs::read_to_string(source().join("lib.rs")).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("//! |")?.split('|').map(str::trim);
        let (floor, room) = (cells.next()?, cells.next()?);
        let room = room.strip_prefix("[`")?.strip_suffix("`]")?;
        floor.parse::<u8>().ok().map(|_| (room.to_owned(), floor.to_owned()))
    };
    text.lines().filter_map(row).collect()
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Each file of `src` and the room it is in.
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
    let room = |path: PathBuf| {
        let relative = path.strip_prefix(source()).unwrap().to_owned();
        let first = relative.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        (first.trim_end_matches(".rs").to_owned(), path)
    };
    all.into_iter().map(room).filter(|(room, _)| !matches!(room.as_str(), "lib" | "main" | "bin")).collect()
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

/// The rooms that a piece of code names: `crate::room`, also in `use crate::{room::…, other::…}`.
fn used(code: &str) -> BTreeSet<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut rooms = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::`, `pub(in crate::…)`: the same rooms.
        let rest = &code[at + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            rooms.insert(word(rest));
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
                    rooms.insert(word(item.trim()));
                    item.clear();
                    continue;
                }
                _ => {}
            }
            item.push(c);
        }
        rooms.insert(word(item.trim()));
    }
    rooms
}

#[test]
fn the_map_names_each_room_and_no_other() {
    let on_the_map: BTreeSet<String> = map().into_iter().map(|(room, _)| room).collect();
    let there: BTreeSet<String> = files().into_iter().map(|(room, _)| room).collect();
    assert_eq!(on_the_map, there);
}

#[test]
fn each_room_uses_rooms_above_it_and_no_others() {
    let map = map();
    let line = |room: &str| map.iter().position(|(known, _)| known == room);
    // The ways in and out stand side by side on one floor: none of them uses another.
    let floor = |room: &str| map.iter().find(|(known, _)| known == room).map(|(_, floor)| floor.clone());
    let mut wrong = Vec::new();
    for (room, path) in files() {
        for other in used(&code(&path)) {
            let (Some(mine), Some(its)) = (line(&room), line(&other)) else { continue };
            let beside = floor(&room).as_deref() == Some(SIDE_BY_SIDE) && floor(&other) == floor(&room);
            if other != room && (its >= mine || beside) {
                wrong.push(format!("{}: {room} uses {other}", path.strip_prefix(source()).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The floor whose rooms do not use each other, whatever the order of their lines.
const SIDE_BY_SIDE: &str = "6";

#[test]
fn nothing_is_printed_but_by_the_ways_in_and_out() {
    const PRINTS: [&str; 8] =
        ["print!", "println!", "dbg!", "stdout()", "stderr()", "complain(", "complain_as(", "IsTerminal"];
    // `complain` itself is there for them, and `command` and `service` read command lines.
    let may = |room: &str, path: &Path| {
        matches!(room, "cli" | "pipe" | "command" | "service") || path.ends_with("base/terminal.rs")
    };
    let mut wrong = Vec::new();
    for (_, path) in files().into_iter().filter(|(room, path)| !may(room, path)) {
        let code = code(&path);
        wrong.extend(
            PRINTS.iter().filter(|word| code.contains(*word)).map(|word| format!("{}: {word}", path.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_statement_on_the_ledgers_tables_is_in_the_ledger() {
    const TABLES: [&str; 18] = [
        "api_tokens",
        "attempts",
        "messages",
        "message_sources",
        "copies",
        "addresses",
        "refusals",
        "ways_in",
        "epochs",
        "subscriptions",
        "subscription_queues",
        "outbox",
        "events",
        "notifications",
        "notification_attempts",
        "web_logins",
        "web_sessions",
        "operations_log",
    ];
    // `check` and `quickstart` tell people what to run.
    const TOLD_TO_PEOPLE: [&str; 2] = ["operations/check/database.rs", "operations/quickstart/database.rs"];
    let mut wrong = Vec::new();
    for (room, path) in files() {
        let elsewhere = TOLD_TO_PEOPLE.iter().any(|known| path.ends_with(known));
        if room == "ledger" || elsewhere {
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
fn what_a_room_is_for_is_the_first_line_of_it() {
    for (room, _) in map() {
        let file = [format!("{room}.rs"), format!("{room}/mod.rs")].map(|name| source().join(name));
        let text = file.iter().find_map(|file| fs::read_to_string(file).ok()).expect("a room has a file of its own");
        assert!(text.starts_with("//! "), "{room}");
        let doc: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        assert!(doc.contains("Uses "), "{room} does not say what it uses");
    }
}

#[test]
fn names_in_braces_and_paths_are_read() {
    let rooms = |code| used(code).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(rooms("use crate::lock::{A, B}; crate::base::hex::encode(x)"), "base lock");
    assert_eq!(rooms("use crate::{imap::{self, X}, message};"), "imap message");
}
