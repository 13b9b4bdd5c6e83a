//! Our name in the server's list of sessions: `maildrop QUEUEID pid@host`. A delivery that finds a lock taken reads the
//! holder there.

use crate::database::Client;
use std::fmt;

const PROGRAM: &str = "maildrop";
/// Stands for a missing queue id.
const NONE: &str = "-";
/// In bytes: the server cuts a longer name (NAMEDATALEN - 1, PostgreSQL manual, `application_name`).
const MAX_LENGTH: usize = 63;
/// Long queue ids of Postfix have some 15 characters. A longer id is cut, which leaves space for pid and host.
const MAX_QUEUE_ID: usize = 24;

/// A delivery's process, as its session's name describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessName {
    pub(crate) queue_id: Option<String>,
    pub(crate) pid: u32,
    /// Last in the name, so that the host is cut if the name is too long.
    pub(crate) host: String,
}

impl ProcessName {
    pub fn of(client: &Client) -> Self {
        let queue_id = client.queue_id.as_deref().map(|id| plain(id).chars().take(MAX_QUEUE_ID).collect());
        Self { queue_id, pid: client.pid, host: plain(&client.host) }
    }

    /// Parses another session's name; `None` if it is no delivery of ours.
    pub(crate) fn from_application_name(name: &str) -> Option<Self> {
        let mut words = name.split(' ');
        if words.next() != Some(PROGRAM) {
            return None;
        }
        let queue_id = words.next().filter(|id| !id.is_empty())?;
        let (pid, host) = words.next()?.split_once('@')?;
        if words.next().is_some() {
            return None;
        }
        let queue_id = (queue_id != NONE).then(|| queue_id.to_owned());
        Some(Self { queue_id, pid: pid.parse().ok()?, host: host.to_owned() })
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue_id = self.queue_id.as_deref().filter(|id| !id.is_empty()).unwrap_or(NONE);
        let name = format!("{PROGRAM} {queue_id} {}@{}", self.pid, self.host);
        // The name is ASCII, so a cut never splits a character.
        f.write_str(name.get(..MAX_LENGTH).unwrap_or(&name))
    }
}

/// Printable ASCII without the space: the server would replace anything else.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(queue_id: Option<&str>, host: &str) -> Client {
        Client { host: host.into(), pid: 4711, queue_id: queue_id.map(str::to_owned) }
    }

    #[test]
    fn a_session_tells_queue_id_pid_and_host_and_is_understood() {
        for (queue_id, name) in [
            (Some("4XyZ12abcdz3Fq"), "maildrop 4XyZ12abcdz3Fq 4711@mx2.example.com"),
            (None, "maildrop - 4711@mx2.example.com"),
        ] {
            let process = ProcessName::of(&client(queue_id, "mx2.example.com"));
            assert_eq!(process.to_string(), name);
            assert_eq!(ProcessName::from_application_name(name), Some(process));
        }
    }

    #[test]
    fn a_long_name_loses_the_end_of_the_host_and_nothing_else() {
        let process = ProcessName::of(&client(Some(&"Q".repeat(100)), &"h".repeat(100)));
        let name = process.to_string();
        assert_eq!(name.len(), 63);
        let read = ProcessName::from_application_name(&name).unwrap();
        assert_eq!((read.pid, read.queue_id), (4711, Some("Q".repeat(24))));
        assert!(read.host.len() > 20 && process.host.starts_with(&read.host));
    }

    #[test]
    fn odd_characters_do_not_move_the_words() {
        let process = ProcessName::of(&client(Some("a b\nc"), "hö st\0"));
        assert_eq!(process.to_string(), "maildrop a?b?c 4711@h??st?");
    }

    #[test]
    fn other_programs_sessions_tell_nothing() {
        for name in ["", "psql", "maildrop", "maildrop x", "maildrop x y", "maildrop x y@z", "maildrop x 1@y z"] {
            assert_eq!(ProcessName::from_application_name(name), None, "{name}");
        }
    }
}
