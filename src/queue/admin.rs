//! The operations of people on one message of the queue: hold, release, drop, read.

use super::folder::{Folder, NameKind};
use super::{Envelope, Folders, Name, Queue, QueueError, State};
use std::io::Read;
use std::time::{Duration, SystemTime};
use thiserror::Error;

/// How often a message that has just moved is searched for.
const LOOKS: usize = 5;

/// Why a message was left unchanged.
#[derive(Debug, Error)]
pub enum QueueAdminError {
    #[error("there is no message {id} in the queue")]
    NoSuch { id: String },
    /// A clock that was set back may give one id twice.
    #[error("{id} is more than one message: name one file of {}", files.join(", "))]
    Several { id: String, files: Vec<String> },
    #[error("{id} is being delivered at this moment: try again when it is not")]
    BeingDelivered { id: String },
    #[error("{id} is in {state}/: only a message in {allowed} can be {done}")]
    NotFrom { id: String, state: State, allowed: &'static str, done: &'static str },
    /// The ledger may have pruned the record of the message's delivery.
    #[error(
        "{id} has been in the queue for longer than the ledger remembers: if it was delivered, it would be duplicated"
    )]
    TooOld { id: String },
    #[error("{id} cannot be read: {problem}")]
    Unreadable { id: String, problem: String },
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl Queue {
    /// Keeps runners from a message until it is released.
    ///
    /// # Errors
    /// If the message is not in `new/`.
    pub fn hold(&self, id: &str) -> Result<Name, QueueAdminError> {
        self.act(id, |folders, state, name| match state {
            State::New => Ok(rename_durably(&folders.new, &folders.held, name, name)?),
            state => Err(not_from(id, state, "new/", "held")),
        })
    }

    /// Releases a message that was held, refused or moved to `bad/`: runners may try it at once.
    ///
    /// `age_limit` is for how long the ledger remembers deliveries. A message that was accepted longer ago is released only
    /// with `again`: some recipients may have received it already, and would receive it once more. The time of acceptance
    /// counts, because only the file's own times say when it was held, and a backup changes those.
    ///
    /// # Errors
    /// If the message is in another folder, or too old.
    pub fn release(
        &self,
        id: &str,
        age_limit: Option<Duration>,
        again: bool,
        now: SystemTime,
    ) -> Result<Name, QueueAdminError> {
        self.act(id, |folders, state, name| {
            if !matches!(state, State::Held | State::Refused | State::Bad) {
                return Err(not_from(id, state, "held/, refused/ or bad/", "released"));
            }
            if !again && age_limit.is_some_and(|limit| name.age(now) > limit) {
                return Err(QueueAdminError::TooOld { id: id.to_owned() });
            }
            Ok(rename_durably(folders.folder(state), &folders.new, name, name.due_at_once())?)
        })
    }

    /// Removes a message for good: no other system has it any more.
    ///
    /// # Errors
    /// If a runner is delivering the message.
    pub fn drop_message(&self, id: &str) -> Result<Name, QueueAdminError> {
        self.act(id, |folders, state, name| {
            if state == State::Work {
                return Err(QueueAdminError::BeingDelivered { id: id.to_owned() });
            }
            let folder = folders.folder(state);
            if !folder.remove(name.to_string().as_str())? {
                return Ok(None);
            }
            folder.sync()?;
            Ok(Some(name))
        })
    }

    /// A message in any folder of the queue: its envelope, and its bytes as they came.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn read(&self, id: &str) -> Result<(Envelope, Vec<u8>), QueueAdminError> {
        let unreadable = |problem: String| QueueAdminError::Unreadable { id: id.to_owned(), problem };
        self.act(id, |folders, state, name| match folders.folder(state).find(name.to_string().as_str())? {
            NameKind::Gone => Ok(None),
            NameKind::NoFile(kind) => Err(unreadable(format!("it is {kind}"))),
            NameKind::File(mut file) => {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).map_err(|error| unreadable(error.to_string()))?;
                Envelope::read_with_message(bytes).map(Some).map_err(|error| unreadable(error.to_string()))
            }
        })
    }

    /// Finds a message and applies `does` to it. `does` returns `None` if the message has left that folder meanwhile.
    fn act<T>(
        &self,
        id: &str,
        does: impl Fn(&Folders, State, Name) -> Result<Option<T>, QueueAdminError>,
    ) -> Result<T, QueueAdminError> {
        for _ in 0..LOOKS {
            let (state, name) = self.0.named(id)?;
            if let Some(done) = does(&self.0, state, name)? {
                return Ok(done);
            }
        }
        Err(QueueAdminError::BeingDelivered { id: id.to_owned() })
    }
}

impl Folders {
    /// The folder and the name of the message with this id or file name.
    fn named(&self, id: &str) -> Result<(State, Name), QueueAdminError> {
        let mut found = Vec::new();
        // The message may move from one folder to another during the search.
        for _ in 0..LOOKS {
            for (state, folder) in self.all() {
                let names = folder.messages()?.into_iter();
                found.extend(names.filter(|n| n.id() == id || n.to_string() == id).map(|name| (state, name)));
            }
            // A message that moved during the search may have been found twice.
            let is_gone = |found| matches!(found, Ok(NameKind::Gone));
            found.retain(|(state, name)| !is_gone(self.folder(*state).find(name.to_string().as_str())));
            match found.as_slice() {
                [] => {}
                [one] => return Ok(*one),
                several => {
                    let file = |(state, name): &(State, Name)| format!("{state}/{name}");
                    let files = several.iter().map(file).collect();
                    return Err(QueueAdminError::Several { id: id.to_owned(), files });
                }
            }
        }
        Err(QueueAdminError::NoSuch { id: id.to_owned() })
    }
}

fn not_from(id: &str, state: State, allowed: &'static str, done: &'static str) -> QueueAdminError {
    match state {
        State::Work => QueueAdminError::BeingDelivered { id: id.to_owned() },
        state => QueueAdminError::NotFrom { id: id.to_owned(), state, allowed, done },
    }
}

/// Moves a message. Once this returns, the move survives a power failure.
pub(super) fn rename_durably(
    from: &Folder,
    to: &Folder,
    name: Name,
    new_name: Name,
) -> Result<Option<Name>, QueueError> {
    let moved = from.rename_to_a_free(name.to_string().as_str(), to, new_name)?;
    if moved.is_some() {
        to.sync()?;
        from.sync()?;
    }
    Ok(moved)
}
