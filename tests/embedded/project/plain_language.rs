//! Pages, comments and names are in plain engineering English. Each number here is what is left to rewrite: it may only sink.

use crate::pages::{read, root};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The longest sentence of a page, in words.
const LONGEST_SENTENCE: usize = 35;

/// Each has a usual word in its place: notify for `tell`, fix for `mend`, duplicated for `there twice`.
const PRIVATE_WORDS: &str = "mend, mends, mended, mending, told, telling, heard of, there twice, there never, way in, ways in, \
     stand still, stands still, stood still, standing still, by hand, set aside, sets aside, in hand, whoever, for want of, \
     to be had, anew, amiss";

/// How often they stand in the pages.
const PRIVATE_WORDS_IN_PAGES: usize = 3;

/// How often they stand in `src`, names such as `by_hand` included: in the name of a lock, which stays to the byte.
const PRIVATE_WORDS_IN_SOURCE: usize = 1;

/// How often they stand in the tests, whose names are sentences.
const PRIVATE_WORDS_IN_TESTS: usize = 4;

/// How many type names are declared more than twice in `src`: a search for one of them finds the wrong one.
const REPEATED_TYPE_NAMES: usize = 0;

/// Each subcommand, each role and each module of tests has one of its own.
const EXPECTED_TO_REPEAT: [&str; 4] = ["Arguments", "Command", "Scene", "Settings"];

/// The files whose names match, as find(1) does, by their path in the project.
fn files(pattern: &str) -> Vec<String> {
    let mut find = Command::new("find");
    find.args([
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "docs",
        "postfix",
        "src",
        "tests",
        "-name",
        pattern,
    ]);
    // The benchmark writes that one.
    find.args(["-not", "-path", "tests/bench/results.md"]).current_dir(root());
    let found = find.output().unwrap();
    assert!(found.status.success(), "{found:?}");
    String::from_utf8(found.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The code below `src/` or `tests/`. This file, which lists the words, is left out.
fn sources(folder: &str) -> BTreeMap<String, String> {
    let files =
        files("*.rs").into_iter().filter(|file| file.starts_with(folder) && !file.ends_with("/plain_language.rs"));
    files.map(|file| (file.clone(), fs::read_to_string(root().join(file)).unwrap())).collect()
}

/// A paragraph without the targets of its links; what stands between backticks is one word.
fn plain_text(paragraph: &str) -> String {
    let parts = paragraph.split('`').enumerate().map(|(n, part)| if n % 2 == 0 { part } else { "code" });
    let text: String = parts.collect();
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, after)| after))
}

/// The sentences of a page, without its tables, headings and examples. An item of a list begins a new one.
fn sentences(page: &Path) -> Vec<String> {
    let (mut paragraphs, mut is_open) = (Vec::<String>::new(), false);
    for line in read(page).0.lines().map(str::trim) {
        let numbered = || line.split_once(". ").and_then(|(number, text)| number.parse::<u8>().ok().map(|_| text));
        let item = line.strip_prefix("- ").or_else(numbered);
        if line.is_empty() || line.starts_with(['|', '#', '<', '!']) {
            is_open = false;
        } else if let Some(paragraph) = paragraphs.last_mut().filter(|_| is_open && item.is_none()) {
            *paragraph += &format!(" {line}");
        } else {
            paragraphs.push(item.unwrap_or(line).to_owned());
            is_open = true;
        }
    }
    let is_end = |word: &&str| word.trim_end_matches(['*', '_', ')', '"', ']']).ends_with(['.', '!', '?', '…']);
    let mut sentences = Vec::new();
    for text in paragraphs.iter().map(|paragraph| plain_text(paragraph)) {
        let words: Vec<&str> = text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).collect();
        sentences.extend(words.split_inclusive(is_end).map(|sentence| sentence.join(" ")));
    }
    sentences
}

/// The words of a text in lower case, each between spaces; a name such as `told_again` or `ToldAgain` is two.
fn words(text: &str) -> String {
    let (mut words, mut before) = (String::from(" "), ' ');
    for c in text.chars() {
        if c.is_uppercase() && before.is_lowercase() || !c.is_alphanumeric() && !words.ends_with(' ') {
            words.push(' ');
        }
        words.extend(c.to_lowercase().filter(|c| c.is_alphanumeric()));
        before = c;
    }
    words + " "
}

fn assert_few_private_words(texts: &BTreeMap<String, String>, limit: usize) {
    let (mut total, mut found) = (0, String::new());
    for (file, text) in texts {
        let words = words(text);
        let counted = PRIVATE_WORDS.split(", ").map(|phrase| (phrase, words.matches(&format!(" {phrase} ")).count()));
        let counted: BTreeMap<&str, usize> = counted.filter(|(_, times)| *times > 0).collect();
        total += counted.values().sum::<usize>();
        found += &format!("{file}: {counted:?}\n");
    }
    assert!(texts.len() > 10 && total <= limit, "{total} private words, {limit} at most:\n{found}");
}

#[test]
fn no_page_has_a_long_sentence() {
    let mut over = String::new();
    for page in files("*.md") {
        let counted = sentences(&root().join(&page)).into_iter().map(|text| (text.split(' ').count(), text));
        let mut long: Vec<(usize, String)> = counted.filter(|(words, _)| *words > LONGEST_SENTENCE).collect();
        long.sort_by(|one, other| other.cmp(one));
        if !long.is_empty() {
            over += &format!("{page}: {long:#?}\n");
        }
    }
    assert!(over.is_empty(), "sentences of more than {LONGEST_SENTENCE} words:\n{over}");
}

/// A reader with one goal has few minutes. Words are those of wc(1): commands and tables count.
#[test]
fn each_guide_is_short_enough_for_one_reader() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 110, "README.md has {} lines", readme.lines().count());
    for (page, most) in [
        ("install", 1_500),
        ("testing", 3_000),
        ("service", 1_800),
        ("operate", 1_800),
        ("notifications", 1_800),
        ("api", 1_800),
        ("web-ui", 1_800),
        ("failover", 1_800),
        ("sizing", 1_800),
        ("replay-and-audit", 1_800),
        ("log", 1_800),
        ("promises", 1_800),
    ] {
        let text = fs::read_to_string(root().join(format!("docs/{page}.md"))).unwrap();
        let words = text.split_whitespace().count();
        assert!(words <= most, "docs/{page}.md has {words} words, {most} at most");
    }
}

#[test]
fn no_private_word_is_added_to_the_pages() {
    let pages = files("*.md").into_iter().map(|page| (page.clone(), read(&root().join(page)).0)).collect();
    assert_few_private_words(&pages, PRIVATE_WORDS_IN_PAGES);
}

#[test]
fn no_private_word_is_added_to_the_source() {
    assert_few_private_words(&sources("src/"), PRIVATE_WORDS_IN_SOURCE);
}

#[test]
fn no_private_word_is_added_to_the_tests() {
    assert_few_private_words(&sources("tests/"), PRIVATE_WORDS_IN_TESTS);
}

#[test]
fn no_further_type_name_is_declared_more_than_twice() {
    let mut declared = BTreeMap::<String, Vec<String>>::new();
    for (file, text) in sources("src/") {
        for line in text.lines() {
            let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
            if let (Some("struct" | "enum" | "trait"), Some(rest)) = (words.next(), words.next()) {
                let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                declared.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
    }
    declared.retain(|name, files| files.len() > 2 && !EXPECTED_TO_REPEAT.contains(&name.as_str()));
    let (count, limit) = (declared.len(), REPEATED_TYPE_NAMES);
    assert!(count <= limit, "{count} type names are declared more than twice, {limit} at most: {declared:#?}");
}
