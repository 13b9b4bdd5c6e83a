//! The ledger as a source: the deliveries that it knows of, each with its envelope. The message comes from the sources that
//! it keeps, or from the mailbox of anybody who has got it.

use crate::ledger::Database;
use crate::ledger::deliveries::{DeliveryQuery, each_delivery};
use crate::message::Address;
use crate::operations::replay::ReplayError;
use crate::operations::replay::list::{Entry, List, Location};
use crate::site::Site;

/// Which deliveries. What is not said does not narrow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerQuery {
    /// Those of messages with one of these Message-IDs.
    pub(crate) message_ids: Vec<String>,
    /// Those that were tried since, in microseconds since 1970.
    pub(crate) since: Option<i64>,
    /// Those whose recipient's copy is not delivered.
    pub(crate) failed: bool,
    /// Those to one of these addresses.
    pub(crate) recipients: Vec<Address>,
}

impl LedgerQuery {
    /// Writes down the deliveries, each once, as old as its first attempt is.
    pub fn list(&self, site: &Site, database: &mut dyn Database, list: &List) -> Result<(), ReplayError> {
        let locks: Vec<_> = self.message_ids.iter().map(|id| site.lock_of_message_id(id.as_bytes())).collect();
        let recipients: Vec<_> = self.recipients.iter().map(|address| address.folded().to_string()).collect();
        let query = DeliveryQuery { locks: &locks, since: self.since, failed: self.failed, recipients: &recipients };
        each_delivery(database, &query, |tried| {
            list.add(&Entry {
                at: tried.began_at,
                place: Location::Ledger(tried.copy),
                lock: Some(*tried.lock.digest()),
            })
        })
    }
}
