//! What tests ask of a file queue: how many messages there are in each folder, and one message at a time.

use maildrop_command::lock::Shard;
use maildrop_command::queue::{Claim, DueList, Queue, QueueError, Settlement, State};
use std::time::SystemTime;

/// How many messages there are in each folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub new: usize,
    pub work: usize,
    pub held: usize,
    pub refused: usize,
    pub bad: usize,
}

pub trait QueueOfTests {
    fn counts(&self) -> Result<Counts, QueueError>;
    /// Claims the next message by a listing of its own.
    fn claim(&self, slice: Shard, now: SystemTime) -> Result<Option<Claim>, QueueError>;
}

impl QueueOfTests for Queue {
    fn counts(&self) -> Result<Counts, QueueError> {
        let waiting = self.waiting()?;
        let of = |state| waiting.iter().find(|(known, _)| *known == state).map_or(0, |(_, waiting)| waiting.messages);
        let [new, work, held, refused, bad] =
            [State::New, State::Work, State::Held, State::Refused, State::Bad].map(of);
        Ok(Counts { new, work, held, refused, bad })
    }

    fn claim(&self, slice: Shard, now: SystemTime) -> Result<Option<Claim>, QueueError> {
        self.claim_listed(&mut DueList::remembering(None), slice, now)
    }
}

/// Each recipient has received the message.
pub fn finish(claim: Claim) {
    let delivered = vec![Settlement::Delivered; claim.envelope().recipients.len()];
    claim.settle(&delivered, SystemTime::now()).unwrap();
}
