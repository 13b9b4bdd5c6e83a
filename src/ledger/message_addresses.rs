//! The index of recorded messages by address. No delivery writes it: the timer fills it from the journal, by the time at which
//! attempts began. An attempt is read again until it can no longer record a message, so a late commit is not missed.

use super::Database;
use super::activity::{MINUTE, escaped};
use super::message_search::MessagePage;
use super::time_span::{self, Pages};
use crate::base::text_enum::text_enum;
use crate::database::{DatabaseError, Query, Value};
use crate::message::{Address, as_stored};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Attempts of a page. Each may have a message whose fields are read.
const PAGE: usize = 200;
/// Characters of From, To and Cc that are searched for addresses: a field may have megabytes.
const LONGEST_FIELD: usize = 4096;
/// Rows of one INSERT.
const ROWS: usize = 500;
/// After any character of an address, in the order of bytes.
const LAST: char = '\u{10FFFF}';
/// How many addresses or domains with the same beginning a search covers.
const MOST_KEYS: usize = 50;

text_enum! {
    /// What an address is to a message.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum AddressRole {
        /// Of the envelope.
        Recipient = "recipient",
        /// Of the envelope.
        Sender = "sender",
        From = "from",
        To = "to",
        Cc = "cc",
    }
}

/// The id of a message, its envelope sender, and the beginnings of From, To and Cc.
type AddressFields = (i64, String, Option<String>, Option<String>, Option<String>);

/// One run over the attempts that may have recorded messages since the last run.
pub(crate) struct AddressIndexing {
    pages: Pages,
    /// Before this time no attempt can record a message any more, in microseconds since 1970.
    settled: i64,
}

impl AddressIndexing {
    /// `settles_within` is how long after its beginning an attempt may still record a message.
    ///
    /// # Errors
    /// If the position of the last run cannot be read.
    pub(crate) fn begin(database: &mut dyn Database, settles_within: Duration) -> Result<Self, DatabaseError> {
        let now = time_span::now(database)?;
        let read = format!("SELECT {} FROM message_addresses_read", database.dialect().microseconds("started_at"));
        let from = database.query_first("reading how far addresses are indexed", &read, &[])?;
        // An attempt may begin at this very moment.
        let pages = Pages::new(from.unwrap_or(0), now.saturating_add(MINUTE), PAGE);
        Ok(Self { pages, settled: now.saturating_sub(time_span::microseconds(settles_within)) })
    }

    /// Indexes the messages of the next attempts; returns how many addresses of messages were new, or `None` at the end.
    ///
    /// # Errors
    /// If the database fails. The next run begins at the last position that was written.
    pub(crate) fn index_page(&mut self, database: &mut dyn Database) -> Result<Option<u64>, DatabaseError> {
        let columns = "a.recipient, (SELECT m.id FROM messages m WHERE m.identity = a.identity), \
             EXISTS (SELECT 1 FROM messages m JOIN message_addresses x ON x.message = m.id AND x.address = a.recipient \
             AND x.role = 'recipient' WHERE m.identity = a.identity)";
        let page = self.pages.next::<(String, Option<i64>, bool)>(database, columns, "1 = 1", &[])?;
        let Some(page) = page else {
            write_position(database, self.settled)?;
            return Ok(None);
        };
        let reached = page.last().map_or(self.settled, |(last, _)| last.began_at.min(self.settled));
        let mut of_messages: BTreeMap<i64, BTreeSet<(String, AddressRole)>> = BTreeMap::new();
        for (_, (recipient, message, is_indexed)) in page {
            if let (Some(message), false) = (message, is_indexed) {
                let address = (as_stored(&recipient), AddressRole::Recipient);
                of_messages.entry(message).or_default().insert(address);
            }
        }
        let added = index_messages(database, of_messages)?;
        write_position(database, reached)?;
        Ok(Some(added))
    }
}

fn write_position(database: &mut dyn Database, started_at: i64) -> Result<(), DatabaseError> {
    let update = database.dialect().or_update("id", "started_at = ?");
    let sql = format!("INSERT INTO message_addresses_read (id, started_at) VALUES (1, ?) {update}");
    database.change("recording how far addresses are indexed", &sql, &[Value::Moment(started_at); 2]).map(drop)
}

/// Adds these addresses, and those in the messages' fields.
fn index_messages(
    database: &mut dyn Database,
    mut of_messages: BTreeMap<i64, BTreeSet<(String, AddressRole)>>,
) -> Result<u64, DatabaseError> {
    if of_messages.is_empty() {
        return Ok(0);
    }
    let field = |name: &str| format!("substr(m.{name}, 1, {LONGEST_FIELD})");
    let sql = format!(
        "SELECT m.id, m.sender, {}, {}, {} FROM messages m WHERE m.id IN ({})",
        field("header_from"),
        field("header_to"),
        field("header_cc"),
        database.dialect().list(of_messages.keys().map(|id| Value::Integer(*id)))
    );
    let messages: Vec<AddressFields> = database.query("reading addresses of messages", &sql, &[])?;
    for (id, sender, from, to, cc) in messages {
        let Some(all) = of_messages.get_mut(&id) else { continue };
        let fields = [(AddressRole::From, from), (AddressRole::To, to), (AddressRole::Cc, cc)];
        for (role, text) in [(AddressRole::Sender, Some(sender))].into_iter().chain(fields) {
            all.extend(addresses_in(text.as_deref().unwrap_or_default()).map(|address| (address, role)));
        }
    }
    let rows: Vec<(i64, &str, AddressRole)> = of_messages
        .iter()
        .flat_map(|(id, all)| all.iter().map(|(address, role)| (*id, address.as_str(), *role)))
        // A longer one is no address, and no column has to hold it.
        .filter(|(_, address, _)| address.len() <= 320)
        .collect();
    let mut added = 0;
    for rows in rows.chunks(ROWS) {
        let places = vec!["(?, ?, ?, ?)"; rows.len()].join(", ");
        let into = format!("message_addresses (message, address, domain, role) VALUES {places}");
        let values = rows.iter().flat_map(|(id, address, role)| {
            let domain = address.rsplit_once('@').map_or("", |(_, domain)| domain);
            [Value::Integer(*id), Value::Text(address), Value::Text(domain), Value::Text(role.as_str())]
        });
        let values: Vec<Value<'_>> = values.collect();
        added += database.change("indexing addresses", &database.dialect().insert_new(&into), &values)?;
    }
    Ok(added)
}

/// The addresses in a decoded field, as the ledger stores them. Its syntax is not checked: a name that looks like an address is
/// found as well.
fn addresses_in(text: &str) -> impl Iterator<Item = String> {
    let ends = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | ':' | '<' | '>' | '(' | ')' | '"' | '\'');
    let words = text.split(ends).filter(|word| word.contains('@'));
    words.filter_map(|word| Address::parse(word).ok()?.named())
}

/// Addresses that a search selects, as the ledger stores them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressPattern {
    Address(String),
    Domain(String),
    /// The beginning of an address, or of a domain.
    Beginning(String),
    DomainBeginning(String),
}

impl AddressPattern {
    /// The pattern for LIKE.
    pub(super) fn like(&self) -> String {
        match self {
            Self::Address(address) => escaped(address),
            Self::Domain(domain) => format!("%@{}", escaped(domain)),
            Self::Beginning(begin) => format!("{}%", escaped(begin)),
            Self::DomainBeginning(begin) => format!("%@{}%", escaped(begin)),
        }
    }
}

/// The newest messages before `before` that have an address like this, at most `limit`. `visible` limits the addresses
/// of the envelope to some addresses and domains: others may be blind copies, or name one (`shown_sender`).
///
/// # Errors
/// If the database fails.
pub(crate) fn find(
    database: &mut dyn Database,
    pattern: &AddressPattern,
    visible: Option<(&[String], &[String])>,
    before: Option<i64>,
    limit: usize,
) -> Result<MessagePage, DatabaseError> {
    let mut searched_up_to = None;
    // One address or domain is a key as it stands.
    let (mut keys, columns, text): (Vec<(&str, String)>, &[&str], &str) = match pattern {
        AddressPattern::Address(address) => (vec![("address", address.clone())], &[], address),
        AddressPattern::Domain(domain) => (vec![("domain", domain.clone())], &[], domain),
        AddressPattern::Beginning(begin) => (Vec::new(), &["address", "domain"], begin),
        AddressPattern::DomainBeginning(begin) => (Vec::new(), &["domain"], begin),
    };
    for column in columns {
        let mut all = keys_from(database, column, text)?;
        if all.len() > MOST_KEYS {
            all.truncate(MOST_KEYS);
            searched_up_to = all.last().cloned();
        }
        keys.extend(all.into_iter().map(|key| (*column, key)));
    }
    let mut allowed = String::new();
    let mut bounds: Vec<Value<'_>> = Vec::new();
    if let Some((addresses, domains)) = visible {
        let list = |all: &[String]| format!("({})", vec!["?"; all.len()].join(", "));
        allowed.push_str(" AND (x.role IN ('from', 'to', 'cc')");
        for (column, all) in [("address", addresses), ("domain", domains)] {
            if !all.is_empty() {
                allowed.push_str(&format!(" OR x.{column} IN {}", list(all)));
                bounds.extend(all.iter().map(|one| Value::Text(one)));
            }
        }
        allowed.push(')');
    }
    let (mut parts, mut values) = (Vec::new(), Vec::new());
    for (at, (column, key)) in keys.iter().enumerate() {
        parts.push(format!(
            "SELECT message FROM (SELECT DISTINCT x.message FROM message_addresses x WHERE x.{column} = ? AND x.message < ?\
             {allowed} ORDER BY x.message DESC LIMIT {}) k{at}",
            limit + 1
        ));
        values.extend([Value::Text(key), Value::Integer(before.unwrap_or(i64::MAX))]);
        values.extend_from_slice(&bounds);
    }
    if parts.is_empty() {
        return Ok(MessagePage::default());
    }
    let ids: Vec<i64> = database.query("looking for an address", &parts.join(" UNION ALL "), &values)?;
    // The newest of all are among the newest of each key.
    let newest: BTreeSet<i64> = ids.into_iter().collect();
    let page = MessagePage::of(newest.into_iter().rev().collect(), limit);
    Ok(MessagePage { searched_up_to, ..page })
}

/// The addresses or domains that begin like this, one more than is searched. Each is one step in the index.
fn keys_from(database: &mut dyn Database, column: &str, begin: &str) -> Result<Vec<String>, DatabaseError> {
    let end = format!("{begin}{LAST}");
    let step = |comparison: &str| {
        format!(
            "SELECT {column} FROM message_addresses WHERE {column} {comparison} ? AND {column} < ? ORDER BY {column} LIMIT 1"
        )
    };
    let (first, next) = (step(">="), step(">"));
    let mut keys: Vec<String> = Vec::new();
    while keys.len() <= MOST_KEYS {
        let (sql, from) = keys.last().map_or((&first, begin), |last| (&next, last.as_str()));
        let values = [Value::Text(from), Value::Text(&end)];
        let Some(key) = database.query_first("looking for addresses", sql, &values)? else { break };
        keys.push(key);
    }
    Ok(keys)
}
