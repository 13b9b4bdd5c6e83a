//! What goes into the program, by Cargo.lock and Cargo.toml alone: no network, no cargo-deny. `deny.toml` says the same and
//! more to `cargo deny check`.

use std::collections::BTreeSet;

const LOCK: &str = include_str!("../../Cargo.lock");
const MANIFEST: &str = include_str!("../../Cargo.toml");
const DENY: &str = include_str!("../../deny.toml");

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

#[test]
fn everything_comes_from_crates_io_with_its_checksum() {
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        if name == "maildrop_command" {
            continue;
        }
        let source = package.get("source").and_then(toml::Value::as_str);
        assert_eq!(source, Some(CRATES_IO), "{name}");
        assert!(package.get("checksum").is_some(), "{name}: without a checksum");
    }
    let manifest: toml::Table = MANIFEST.parse().unwrap();
    assert!(!manifest.contains_key("patch") && !manifest.contains_key("replace"));
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
