//! What the scenarios of `replay` without servers share.

use crate::program::program;
use crate::replay::{Replayed, replay};
use std::path::PathBuf;
use std::process::Command;

/// An embedded site, and a folder beside it for what is to be replayed.
pub struct Desk(tempfile::TempDir);

impl Desk {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Puts a file there, and what folders it needs; its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = PathBuf::from(self.path(name));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A command line.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program(&["replay", "--embedded", &self.path("site")]);
        // The file of failures is made where it runs.
        command.args(arguments).current_dir(self.0.path());
        command
    }

    pub fn replay(&self, arguments: &[&str]) -> Replayed {
        replay(self.command(arguments), b"")
    }

    pub fn replay_input(&self, arguments: &[&str], input: &[u8]) -> Replayed {
        replay(self.command(arguments), input)
    }

    /// What arrived in an INBOX, sorted, with the line ends that a Maildir has.
    pub fn inbox(&self, address: &str) -> Vec<String> {
        let Ok(folder) = std::fs::read_dir(self.0.path().join("site").join(address).join("new")) else {
            return Vec::new();
        };
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            String::from_utf8(std::fs::read(entry.unwrap().path()).unwrap()).unwrap()
        };
        let mut all: Vec<String> = folder.map(read).collect();
        all.sort();
        all
    }

    /// The Message-IDs of the log, in its order.
    pub fn delivered_in_order(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.path("site/delivery.log")).unwrap();
        let id = |line: &str| Some(line.split_once("message_id=")?.1.split(' ').next()?.to_owned());
        log.lines().filter(|line| line.contains(" delivered ")).filter_map(id).collect()
    }
}

/// A small message.
pub fn message(id: &str) -> String {
    format!(
        "From: lisa@gmail.com\nTo: doug@mail.axial.net\nMessage-ID: <{id}@mail.google.com>\nSubject: {id}\n\n{id}\n"
    )
}
