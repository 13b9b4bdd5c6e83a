//! `quickstart` on a machine of one's own. That what it writes leads to delivered mail is for tests/package/on_debian.

use crate::program::program;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

const SITE: [&str; 6] =
    ["--domain", "mail.axial.net", "--database", "mysql://db.axial.net/maildrop", "--imap", "localhost"];

fn quickstart(folder: &Path, more: &[&str]) -> Output {
    program(&["quickstart"]).args(SITE).args(more).arg(folder).output().unwrap()
}

/// All below a folder: its mode, and what is in it.
fn below(folder: &Path) -> BTreeMap<String, (u32, String)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, mode) = (entry.path(), entry.metadata().unwrap().permissions().mode() & 0o7777);
        let name = entry.file_name().into_string().unwrap();
        if path.is_dir() {
            found.insert(format!("{name}/"), (mode, String::new()));
            found.extend(below(&path).into_iter().map(|(below, what)| (format!("{name}/{below}"), what)));
        } else {
            found.insert(name, (mode, fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

#[test]
fn it_writes_one_folder_for_its_owner_alone_and_overwrites_nothing() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("sites/going-live");
    let reported = quickstart(&folder, &[]);
    assert_eq!(reported.status.code(), Some(0), "{}", String::from_utf8_lossy(&reported.stderr));
    let files = below(&folder);
    for (name, (mode, text)) in &files {
        assert_eq!(*mode, if name.ends_with('/') { 0o700 } else { 0o600 }, "{name}");
        assert!(
            name.ends_with('/') || String::from_utf8_lossy(&reported.stdout).contains(name),
            "{name} is not reported"
        );
        assert!(name.ends_with('/') || !text.is_empty(), "{name}");
    }
    let passwords: Vec<&String> =
        files.iter().filter(|(name, _)| name.ends_with(".password")).map(|(_, (_, text))| text).collect();
    assert_eq!(passwords.len(), 6);
    assert!(passwords.iter().all(|password| password.trim_end().len() == 43), "{passwords:?}");
    assert_eq!(files["notifications.key"].1.len(), 32);
    // Where it is on this machine, it comes from here.
    assert!(files["dovecot/maildrop-masters"].1.ends_with("::::::allow_nets=127.0.0.1,::1\n"));

    let again = quickstart(&folder, &[]);
    assert_eq!(again.status.code(), Some(73));
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists, and is not empty"));
    assert_eq!(below(&folder), files);

    // Passwords are others each time; an empty folder will do.
    let other = home.path().join("other");
    fs::create_dir(&other).unwrap();
    let shown = quickstart(&other, &["--imap-server", "cyrus", "--json"]);
    assert_eq!(shown.status.code(), Some(0));
    let output: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let others = below(&other);
    assert_ne!(others["imap.password"], files["imap.password"]);
    assert_eq!(output["files"].as_array().unwrap().len(), others.keys().filter(|name| !name.ends_with('/')).count());
    assert!(others.contains_key("cyrus/imapd.conf.maildrop") && !others.contains_key("dovecot/"));
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_written() {
    let home = tempfile::tempdir().unwrap();
    for wrong in
        [&["--database", "oracle://x"][..], &["--domain", "a b"], &["--mail-host", "mx1"], &["--imap-server", "x"]]
    {
        let folder = home.path().join("x");
        // An option that is duplicated is one mistake, its value another: both are the caller's.
        let printed = program(&["quickstart", "--imap", "localhost"]).args(wrong).arg(&folder).output().unwrap();
        assert_eq!(printed.status.code(), Some(64), "{wrong:?}");
        assert!(!folder.exists(), "{wrong:?}");
    }
    // Below a file nothing can be made.
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(quickstart(&file.join("x"), &[]).status.code(), Some(74));
}
