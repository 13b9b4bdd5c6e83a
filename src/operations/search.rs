//! Recognizes what a person searches for, and finds recorded messages by it: for `trace`, the web UI and the API.

use crate::base::text_enum::text_enum;
use crate::database::{DatabaseError, Dialect};
use crate::ledger::activity::{self, SearchBy, Wanted};
use crate::ledger::message_addresses::{self, AddressIndexing, AddressPattern};
use crate::ledger::message_search::{self, MessagePage};
use crate::ledger::{Database, time_span};
use crate::lock::LockName;
use crate::message::{as_stored, fold, queue_id};
use crate::site::Site;
use serde::Serialize;
use std::time::{Duration, Instant};
use tracing::debug;

/// The longest time after its deadline within which the database may still commit what a delivery has recorded.
const COMMIT: Duration = Duration::from_mins(1);
/// How long a person's search may index missing rows. The timer indexes the rest.
const INDEXING: Duration = Duration::from_secs(5);

/// How many attempts of one queue id are read, the newest.
const MOST_ATTEMPTS: usize = 500;

text_enum! {
    /// The meaning that was given to a search text.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    pub(crate) enum TakenAs {
        #[serde(rename = "Message-ID")]
        MessageId = "a Message-ID",
        /// Of Postfix, or of the file queue: the id of a submission.
        #[serde(rename = "queue id")]
        QueueId = "a queue id",
        /// Of a recipient or an author, or the name of a mailbox's user.
        #[serde(rename = "address")]
        Address = "an address",
        #[serde(rename = "domain")]
        Domain = "a domain",
        #[serde(rename = "beginning of an address")]
        Beginning = "the beginning of an address",
        /// Part of a subject, or of an author's name or address.
        #[serde(rename = "part of a subject or author")]
        Piece = "a part of a subject or an author",
    }
}

/// What a text may mean, in the order in which it is tried, and the text without its marks.
pub(crate) fn meanings(text: &str) -> (&'static [TakenAs], &str) {
    use TakenAs::{Address, Beginning, Domain, MessageId, Piece, QueueId};
    let text = text.trim();
    let inner = text.trim_matches('*');
    if text.starts_with('<') {
        return (&[MessageId], text);
    }
    if text.starts_with('*') {
        return (&[Piece], inner);
    }
    if text.ends_with('*') {
        return (&[Beginning], inner);
    }
    match text.strip_prefix('@') {
        Some(_) => (&[Domain, Beginning], text),
        None if text.contains('@') => (&[MessageId, Address, Beginning], text),
        None if text.contains(char::is_whitespace) => (&[Piece], text),
        None => (&[QueueId, Beginning, Piece], text),
    }
}

/// The addresses that a text stands for, if it has this meaning.
pub(crate) fn pattern(taken_as: TakenAs, text: &str) -> Option<AddressPattern> {
    let domain = text.strip_prefix('@').map(fold);
    match (taken_as, domain) {
        (TakenAs::Address, _) => Some(AddressPattern::Address(as_stored(text))),
        (TakenAs::Domain, Some(domain)) => Some(AddressPattern::Domain(domain)),
        (TakenAs::Beginning, Some(domain)) => Some(AddressPattern::DomainBeginning(domain)),
        (TakenAs::Beginning, None) => Some(AddressPattern::Beginning(fold(text))),
        _ => None,
    }
}

/// Where a page of messages begins: the meaning of the text, and the last message of the page before.
pub(crate) type Start = (TakenAs, i64);

/// A page's start as text, for an URL.
pub(crate) fn start_as_text((taken_as, before): Start) -> String {
    let place = TakenAs::ALL.iter().position(|one| *one == taken_as).unwrap_or_default();
    format!("{place}.{before}")
}

/// A page's start from its text.
pub(crate) fn read_start(text: &str) -> Option<Start> {
    let (place, before) = text.split_once('.')?;
    Some((*TakenAs::ALL.get(place.parse::<usize>().ok()?)?, before.parse().ok()?))
}

/// The addresses and domains to which a search in envelopes is limited; `None`: all.
pub(crate) type VisibleRecipients<'a> = Option<(&'a [String], &'a [String])>;

/// The recorded messages that match a text, the newest first, at most `limit`; and which of these meanings was given to it.
pub(crate) fn messages(
    site: &Site,
    database: &mut dyn Database,
    (mut meanings, text): (&[TakenAs], &str),
    visible: VisibleRecipients<'_>,
    start: Option<Start>,
    limit: usize,
) -> Result<(MessagePage, TakenAs), DatabaseError> {
    let this = start.map(|(taken_as, _)| [taken_as]);
    if let Some(this) = &this {
        meanings = this;
    }
    let before = start.map(|(_, before)| before);
    let mut found = (MessagePage::default(), TakenAs::Piece);
    for taken_as in meanings {
        found = (messages_taken_as(site, database, *taken_as, text, visible, before, limit)?, *taken_as);
        if !found.0.ids.is_empty() {
            break;
        }
    }
    Ok(found)
}

fn messages_taken_as(
    site: &Site,
    database: &mut dyn Database,
    taken_as: TakenAs,
    text: &str,
    visible: VisibleRecipients<'_>,
    before: Option<i64>,
    limit: usize,
) -> Result<MessagePage, DatabaseError> {
    match taken_as {
        TakenAs::MessageId => {
            let lock = site.lock_of_message_id(text.as_bytes());
            message_search::with_lock(database, &lock, before, limit)
        }
        TakenAs::QueueId => {
            // A queue id is Postfix's for as long as it keeps the message.
            let lifetime = time_span::microseconds(site.policy().queue_lifetime);
            let since = time_span::now(database)?.saturating_sub(lifetime);
            let by = Some(SearchBy::QueueId(text.to_owned(), lock_of_queue_id(database, text)?));
            let found = activity::find(database, &Wanted { by, since, ..Wanted::default() }, MOST_ATTEMPTS)?;
            let identities: Vec<[u8; 32]> = found.tried.iter().map(|one| one.identity).collect();
            let page = message_search::with_identities(database, &identities, before, limit)?;
            Ok(MessagePage { looked_back_to: found.looked_back_to, ..page })
        }
        TakenAs::Piece => message_search::containing(database, text, before, limit),
        TakenAs::Address | TakenAs::Domain | TakenAs::Beginning => match pattern(taken_as, text) {
            Some(pattern) => {
                // An embedded site has no timer.
                if database.dialect() == Dialect::Sqlite {
                    index_what_is_missing(site, database);
                }
                message_addresses::find(database, &pattern, visible, before, limit)
            }
            None => Ok(MessagePage::default()),
        },
    }
}

/// The lock of the message with this queue id, if the id contains its arrival time: the search starts there.
pub(crate) fn lock_of_queue_id(database: &mut dyn Database, queue_id: &str) -> Result<Option<LockName>, DatabaseError> {
    match queue_id::arrived(queue_id) {
        Some(arrived) => activity::lock_of_queue_id(database, queue_id, arrived),
        None => Ok(None),
    }
}

/// Indexes the addresses of messages that were recorded since the last run, until the end or until `go_on` says no; returns
/// how many were new.
///
/// # Errors
/// If the database fails. Indexed messages stay indexed.
pub(crate) fn index_addresses(
    site: &Site,
    database: &mut dyn Database,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<u64, DatabaseError> {
    let mut indexing = AddressIndexing::begin(database, site.deadline() + COMMIT)?;
    let mut added = 0;
    while let Some(more) = indexing.index_page(database)? {
        added += more;
        if !go_on() {
            break;
        }
    }
    Ok(added)
}

/// Indexes what the timer has not indexed yet, for a few seconds: for a site without a timer. If our role may not do so, or the
/// server takes no writes, the search finds what is indexed.
pub(crate) fn index_what_is_missing(site: &Site, database: &mut dyn Database) {
    let began = Instant::now();
    if let Err(error) = index_addresses(site, database, &mut || began.elapsed() < INDEXING) {
        debug!(%error, "a search indexes no addresses");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_for_what_it_looks_like() {
        use TakenAs::{Address, Beginning, Domain, MessageId, Piece, QueueId};
        let cases: [(&str, &[TakenAs], &str); 9] = [
            ("<1@x>", &[MessageId], "<1@x>"),
            (" scuba@x ", &[MessageId, Address, Beginning], "scuba@x"),
            ("scuba@*", &[Beginning], "scuba@"),
            ("@x", &[Domain, Beginning], "@x"),
            ("@mail*", &[Beginning], "@mail"),
            ("scuba", &[QueueId, Beginning, Piece], "scuba"),
            ("*scuba*", &[Piece], "scuba"),
            ("quarterly figures", &[Piece], "quarterly figures"),
            ("4jY5Kl1pjDzBFGl", &[QueueId, Beginning, Piece], "4jY5Kl1pjDzBFGl"),
        ];
        for (text, taken_as, inner) in cases {
            assert_eq!(meanings(text), (taken_as, inner), "{text}");
        }
        for start in TakenAs::ALL.map(|taken_as| (taken_as, 7)) {
            assert_eq!(read_start(&start_as_text(start)), Some(start));
        }
        assert_eq!(["", "7", "6.1", "0.x", "x.1"].map(read_start), [None; 5]);
        let beginning = |text| pattern(Beginning, text);
        assert_eq!(beginning("@Mail"), Some(AddressPattern::DomainBeginning("mail".into())));
        assert_eq!(beginning("Scuba"), Some(AddressPattern::Beginning("scuba".into())));
        assert_eq!(pattern(Address, "Scuba@X"), Some(AddressPattern::Address("scuba@x".into())));
    }
}
