//! What goes into the program, by Cargo.lock and what cargo has fetched already: no network, no cargo-deny. `deny.toml`
//! says the same and more to `cargo deny check`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const LOCK: &str = include_str!("../../../Cargo.lock");
const MANIFEST: &str = include_str!("../../../Cargo.toml");
const DENY: &str = include_str!("../../../deny.toml");

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// One TLS library, and that in Rust with ring: these would bring a second, of which each release is one more to be
/// watched, and which need cmake or the system's OpenSSL to build.
const BANNED: [&str; 7] =
    ["aws-lc-rs", "aws-lc-sys", "aws-lc-fips-sys", "openssl", "openssl-sys", "openssl-src", "native-tls"];

fn packages() -> Vec<toml::Table> {
    let lock: toml::Table = LOCK.parse().unwrap();
    let packages = lock["package"].as_array().unwrap();
    packages.iter().map(|package| package.as_table().unwrap().clone()).collect()
}

#[test]
fn none_of_the_banned_crates_is_in_the_tree() {
    let names: BTreeSet<String> =
        packages().iter().map(|package| package["name"].as_str().unwrap().to_owned()).collect();
    assert!(names.contains("rustls") && names.contains("ring"), "this is not the tree: {names:?}");
    for banned in BANNED {
        assert!(!names.contains(banned), "{banned}: `cargo tree -i {banned} -e features` says who asks for it");
    }
}

/// What is here in place of a crate of crates.io: where it is, for a reader of what it does.
const OUR_OWN: [(&str, &str); 1] = [("regex", "src/database/mysql/regex")];

#[test]
fn everything_comes_from_crates_io_with_its_checksum() {
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        if name == "maildrop_command" || OUR_OWN.iter().any(|(own, _)| *own == name) {
            assert!(package.get("source").is_none(), "{name}");
            continue;
        }
        let source = package.get("source").and_then(toml::Value::as_str);
        assert_eq!(source, Some(CRATES_IO), "{name}");
        assert!(package.get("checksum").is_some(), "{name}: without a checksum");
    }
    let manifest: toml::Table = MANIFEST.parse().unwrap();
    let own =
        |(name, path): (&str, &str)| (name.to_owned(), toml::Table::from_iter([("path".into(), path.into())]).into());
    let patches: toml::Table = OUR_OWN.into_iter().map(own).collect();
    assert_eq!(manifest["patch"], toml::Table::from_iter([("crates-io".into(), patches.into())]).into());
    assert!(!manifest.contains_key("replace"));
}

/// A crate for tests, built into the program by a feature, would be built into somebody's package one day.
#[test]
fn what_only_tests_need_is_no_dependency_of_the_program_not_even_an_optional_one() {
    let manifest: toml::Table = MANIFEST.parse().unwrap();
    let dependencies = manifest["dependencies"].as_table().unwrap();
    for (name, dependency) in dependencies {
        assert!(dependency.get("optional").is_none(), "{name} is optional");
        assert!(manifest["dev-dependencies"].get(name).is_none(), "{name} is there for tests, too");
    }
    assert!(manifest["dev-dependencies"].get("imap-proto").is_some());
}

#[test]
fn unsafe_code_is_forbidden() {
    let manifest: toml::Table = MANIFEST.parse().unwrap();
    assert_eq!(manifest["lints"]["rust"]["unsafe_code"].as_str(), Some("forbid"));
}

#[test]
fn deny_toml_bans_the_same_crates() {
    let deny: toml::Table = DENY.parse().unwrap();
    let banned = deny["bans"]["deny"].as_array().unwrap();
    let banned: BTreeSet<&str> = banned.iter().map(|entry| entry["crate"].as_str().unwrap()).collect();
    assert_eq!(banned, BTreeSet::from(BANNED));
    assert_eq!(deny["sources"]["unknown-registry"].as_str(), Some("deny"));
    assert_eq!(deny["sources"]["unknown-git"].as_str(), Some("deny"));
}

/// What cargo knows of the packages that are built for `platform`.
fn built_for(platform: &str) -> Vec<serde_json::Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output_text = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--all-features"])
        .args(["--filter-platform", platform, "--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
        .output()
        .unwrap();
    assert!(output_text.status.success(), "{}", String::from_utf8_lossy(&output_text.stderr));
    let printed: serde_json::Value = serde_json::from_slice(&output_text.stdout).unwrap();
    let nodes = printed["resolve"]["nodes"].as_array().unwrap();
    let built: BTreeSet<&str> = nodes.iter().map(|node| node["id"].as_str().unwrap()).collect();
    let packages = printed["packages"].as_array().unwrap().iter();
    packages.filter(|package| built.contains(package["id"].as_str().unwrap())).cloned().collect()
}

/// Whether an SPDX expression can be met with what is allowed: one of each `OR`, all of each `AND`. (`/` is how Cargo.toml
/// once said `OR`.)
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let expression = expression.trim();
    // The operators outside all parentheses, OR first: AND binds more tightly.
    for (operator, any) in [(" OR ", true), ("/", true), (" AND ", false)] {
        let mut depth = 0;
        for (at, c) in expression.char_indices() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 && expression[at..].starts_with(operator) {
                let (left, right) = (&expression[..at], &expression[at + operator.len()..]);
                let (left, right) = (is_allowed(left, allowed), is_allowed(right, allowed));
                return if any { left || right } else { left && right };
            }
        }
    }
    match expression.strip_prefix('(').and_then(|inside| inside.strip_suffix(')')) {
        Some(inside) => is_allowed(inside, allowed),
        None => allowed.contains(expression),
    }
}

#[test]
fn every_licence_is_one_that_deny_toml_allows() {
    let deny: toml::Table = DENY.parse().unwrap();
    let allowed: BTreeSet<&str> =
        deny["licenses"]["allow"].as_array().unwrap().iter().map(|licence| licence.as_str().unwrap()).collect();
    let clarified: BTreeMap<&str, &str> = deny["licenses"]["clarify"]
        .as_array()
        .unwrap()
        .iter()
        .map(|crate_| (crate_["crate"].as_str().unwrap(), crate_["expression"].as_str().unwrap()))
        .collect();
    let excepted: BTreeMap<&str, BTreeSet<&str>> = deny["licenses"]["exceptions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|crate_| (crate_["crate"].as_str().unwrap(), crate_["allow"].as_array().unwrap()))
        .map(|(name, allow)| (name, allow.iter().map(|licence| licence.as_str().unwrap()).collect()))
        .collect();
    let packages = built_for("x86_64-unknown-linux-gnu");
    assert!(packages.len() > 100, "this is not the tree: {}", packages.len());
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let reported = package["license"].as_str().or_else(|| clarified.get(name).copied());
        let shown = reported.unwrap_or_else(|| panic!("{name} names no licence"));
        let by_exception = excepted.get(name).is_some_and(|allowed| is_allowed(shown, allowed));
        assert!(by_exception || is_allowed(shown, &allowed), "{name}: {shown}");
    }
    for (expression, met) in [
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0 OR MIT AND ISC", true),
        ("(MIT OR Apache-2.0) AND GPL-3.0", false),
        ("MIT/Apache-2.0", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("MPL-2.0", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), met, "{expression}");
    }
}
