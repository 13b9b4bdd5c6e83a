//! The pages for people: each link leads to a file, and to a heading that is there; in the package, too.

use crate::pages::{is_page, pages, read, root, spans};
use std::collections::BTreeSet;
use std::path::Path;

/// What a heading is called in a link, as Git forges make it: lower case, words joined by hyphens, no punctuation; of two
/// that are alike the second one ends in `-1`.
fn anchors(page: &Path) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in read(page).0.lines().filter_map(|line| line.strip_prefix('#')) {
        let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let anchor: String = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let again = (1..).map(|times| format!("{anchor}-{times}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

/// A link's target, and what is wrong with it.
fn dead_links(page: &Path) -> Vec<String> {
    let text = read(page).0;
    let mut dead = Vec::new();
    for (at, _) in text.match_indices("](") {
        let target = text[at + 2..].split(')').next().unwrap();
        if target.contains("://") || target.contains(char::is_whitespace) {
            continue;
        }
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
        let heading_is_there = || is_page(&file) && anchors(&file).contains(anchor);
        if !file.exists() {
            dead.push(format!("{}: {target}: no such file", page.display()));
        } else if !anchor.is_empty() && !heading_is_there() {
            dead.push(format!("{}: {target}: no such heading", page.display()));
        }
    }
    dead
}

#[test]
fn each_link_leads_somewhere() {
    let of_the_tests = ["tests/bench/README.md", "tests/bench/measurements.md", "tests/scale/README.md"];
    let of_the_tests = of_the_tests.map(|page| root().join(page));
    let dead: Vec<String> = pages().iter().chain(&of_the_tests).flat_map(|page| dead_links(page)).collect();
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// `src/lib.rs`, `tests/run`, `sql/ENGINE/0001_schema.sql`: names of files that are renamed without their pages.
#[test]
fn each_file_that_the_text_names_is_there() {
    let is_ours = |text: &str| ["src/", "tests/", "sql/", "docs/", "postfix/"].iter().any(|it| text.starts_with(it));
    let is_a_path = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
    let named: Vec<_> = spans().into_iter().filter(|it| is_ours(&it.text) && is_a_path(&it.text)).collect();
    let is_there = |text: &str| root().join(text.replace("ENGINE", "postgres")).exists();
    let gone: Vec<String> = named
        .iter()
        .filter(|it| !is_there(&it.text))
        .map(|it| format!("{}: `{}`: no such file", it.place, it.text))
        .collect();
    assert!(named.len() > 50 && gone.is_empty(), "{}", gone.join("\n"));
}

/// Questions that a newcomer answers from the list of files alone. Each names the file that is the answer.
#[test]
fn each_question_of_a_newcomer_has_its_file() {
    let lines: Vec<_> =
        include_str!("where_is_what.txt").lines().map(|line| line.rsplit_once(" | ").unwrap()).collect();
    let gone: Vec<_> = lines.iter().filter(|(_, file)| !root().join(file).exists()).collect();
    assert!(lines.len() >= 20 && gone.is_empty(), "{gone:?}");
}

/// What a link of a page of the Debian package leads to, beside these pages, is in it as well.
#[test]
fn what_the_pages_of_the_package_show_is_in_the_package() {
    let manifest: toml::Table = include_str!("../../../Cargo.toml").parse().unwrap();
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().unwrap();
    let assets: Vec<&str> = assets.iter().map(|asset| asset[0].as_str().unwrap()).collect();
    let is_packaged = |path: &str| {
        assets.iter().any(|asset| match asset.split_once('*') {
            Some((before, after)) => {
                let rest = path.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                rest.is_some_and(|rest| !rest.contains('/'))
            }
            None => path == *asset,
        })
    };
    let mut shown = BTreeSet::new();
    for page in pages() {
        // Both are packaged side by side, as they are here.
        let folder = page.parent().unwrap().strip_prefix(root()).unwrap();
        let text = read(&page).0;
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split([')', '#']).next().unwrap();
            let path = folder.join(target).display().to_string();
            if path.strip_prefix("docs/").is_some_and(|name| !name.is_empty() && !name.contains('/')) {
                shown.insert(path);
            }
        }
    }
    let missing: Vec<&String> = shown.iter().filter(|path| !is_packaged(path)).collect();
    assert!(shown.len() > 10 && missing.is_empty(), "of {shown:?} the package lacks {missing:?}");
}

#[test]
fn each_page_in_docs_is_reached_from_the_readme() {
    let readme = read(&root().join("README.md")).0;
    for page in pages() {
        let path = page.strip_prefix(root()).unwrap().display().to_string();
        assert!(path == "README.md" || readme.contains(&format!("]({path})")), "README.md does not lead to {path}");
    }
}

/// The text of all migrations for PostgreSQL.
fn migrations() -> String {
    let files = std::fs::read_dir(root().join("sql/postgres")).unwrap().map(|entry| entry.unwrap().path());
    let numbered = files.filter(|file| file.file_name().unwrap().to_str().unwrap().starts_with('0'));
    numbered.map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

#[test]
fn the_diagram_of_the_tables_shows_each_table_and_no_column_that_is_not_there() {
    let blocks = read(&root().join("docs/schema.md")).1;
    let diagram = blocks.into_iter().find(|block| block.lines[0] == "erDiagram").unwrap();
    let sql = migrations();
    let (mut table, mut shown) = (String::new(), BTreeSet::new());
    for line in &diagram.lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [name, "{"] => {
                table = (*name).to_owned();
                shown.insert(table.clone());
            }
            ["}"] => table.clear(),
            [_, column, ..] if !table.is_empty() => {
                let made =
                    sql.split(&format!("CREATE TABLE {table} (")).nth(1).and_then(|rest| rest.split("\n)").next());
                let made = made.unwrap_or_else(|| panic!("there is no table {table}"));
                let there = made.lines().any(|line| line.trim_start().starts_with(&format!("{column} ")));
                assert!(there, "{table} has no column {column}");
            }
            _ => {}
        }
    }
    let tables = sql.split("CREATE TABLE ").skip(1).map(|rest| rest.split(' ').next().unwrap().to_owned());
    assert_eq!(shown, tables.collect(), "docs/schema.md, and sql/postgres");
}
