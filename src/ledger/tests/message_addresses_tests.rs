//! Messages are found by their addresses.

use super::{Attempt, DAY, MINUTE, Site, site};
use crate::database::Tables;
use crate::ledger::message_addresses::{self, AddressIndexing, AddressPattern};
use crate::ledger::message_search::{self, MessagePage};
use crate::ledger::time_span;
use crate::message::Role;
use std::time::Duration;

/// How long an attempt may take in these tests.
const SETTLES: Duration = Duration::from_mins(5);

impl Site {
    /// How many addresses of messages were new.
    fn index(&mut self, settles_within: Duration) -> u64 {
        let mut indexing = AddressIndexing::begin(&mut self.database, settles_within).unwrap();
        std::iter::from_fn(|| indexing.index_page(&mut self.database).unwrap()).sum()
    }

    fn with_address(&mut self, pattern: &AddressPattern, before: Option<i64>, limit: usize) -> MessagePage {
        message_addresses::find(&mut self.database, pattern, None, before, limit).unwrap()
    }

    fn delivered(&mut self, message: i64, user: &str, began: i64) {
        self.tried(Attempt { user, ..Attempt::at(message, began) });
        self.copy(message, Role::Recipient, user, Some(1), began);
    }
}

fn address(text: &str) -> AddressPattern {
    AddressPattern::Address(text.into())
}

#[test]
fn a_message_is_found_by_its_addresses_and_by_what_they_begin_with() {
    let mut site = site();
    let then = time_span::now(&mut site.database).unwrap() - DAY;
    for message in 1..=7 {
        site.message(message, then + message * MINUTE);
        site.delivered(message, if message < 6 { "doug" } else { "scuba" }, then + message * MINUTE);
    }
    let fields = "UPDATE messages SET header_from = '\"Lisa, (CRM)\" <Lisa.CRM@Axial.net>', header_to = 'a: b@y;, nobody, <no@>', \
                  header_cc = 'o''neil@z' WHERE id = 7";
    site.database.change("filling", fields, &[]).unwrap();
    // A recipient and an envelope sender for each, and three addresses of the header.
    assert_eq!(site.index(SETTLES), 7 * 2 + 3);
    assert_eq!(site.index(SETTLES), 0);
    let mut ids = |pattern: AddressPattern| site.with_address(&pattern, None, 10).ids;
    assert_eq!(ids(address("doug@x")), [5, 4, 3, 2, 1]);
    assert_eq!(ids(address("lisa@x")), [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(ids(address("lisa.crm@axial.net")), [7]);
    assert_eq!(ids(address("b@y")), [7]);
    assert!(ids(address("doug")).is_empty());
    assert_eq!(ids(AddressPattern::Domain("axial.net".into())), [7]);
    assert_eq!(ids(AddressPattern::DomainBeginning("ax".into())), [7]);
    assert!(ids(AddressPattern::DomainBeginning("net".into())).is_empty());
    // A local part, its beginning, and that of a domain.
    assert_eq!(ids(AddressPattern::Beginning("scuba@".into())), [7, 6]);
    assert_eq!(ids(AddressPattern::Beginning("d".into())), [5, 4, 3, 2, 1]);
    assert_eq!(ids(AddressPattern::Beginning("axial".into())), [7]);
    // Pages have each message once.
    let (mut paged, mut before) = (Vec::new(), None);
    loop {
        let page = site.with_address(&AddressPattern::Beginning("l".into()), before, 2);
        paged.extend(page.ids);
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(paged, [7, 6, 5, 4, 3, 2, 1]);
    // Whom a client may not see as an envelope recipient is found by the header alone.
    let mut visible = |text: &str, domains: &[&str]| {
        let domains: Vec<String> = domains.iter().map(|domain| (*domain).to_owned()).collect();
        message_addresses::find(&mut site.database, &address(text), Some((&[], &domains)), None, 10).unwrap().ids
    };
    assert!(visible("scuba@x", &["axial.net"]).is_empty());
    assert_eq!(visible("scuba@x", &["x"]), [7, 6]);
    assert_eq!(visible("b@y", &[]), [7]);
}

#[test]
fn a_message_that_is_recorded_late_is_indexed_all_the_same() {
    let mut site = site();
    let now = time_span::now(&mut site.database).unwrap();
    site.tried(Attempt::at(1, now - 4 * MINUTE));
    site.message(2, now - MINUTE);
    site.delivered(2, "scuba", now - MINUTE);
    assert_eq!(site.index(SETTLES), 2);
    // The first attempt began before the others, and records its message only now. So does another recipient's.
    site.message(1, now);
    site.tried(Attempt { user: "anna", ..Attempt::at(2, now - 3 * MINUTE) });
    assert_eq!(site.index(SETTLES), 2 + 1);
    assert_eq!(site.with_address(&address("doug@x"), None, 10).ids, [1]);
    assert_eq!(site.with_address(&address("anna@x"), None, 10).ids, [2]);
}

#[test]
fn a_search_says_which_addresses_it_left_out() {
    let mut site = site();
    let then = time_span::now(&mut site.database).unwrap() - DAY;
    for message in 10..70 {
        site.message(message, then);
        site.delivered(message, &format!("user{message}"), then + message);
    }
    site.index(SETTLES);
    let page = site.with_address(&AddressPattern::Beginning("user".into()), None, 100);
    assert_eq!((page.ids.len(), page.searched_up_to.as_deref()), (50, Some("user59@x")));
    assert_eq!(site.with_address(&AddressPattern::Beginning("user6".into()), None, 100).searched_up_to, None);
}

#[test]
fn a_part_of_a_subject_or_an_author_is_found_in_pages() {
    let mut site = site();
    for message in 1..=5 {
        site.message(message, message * MINUTE);
    }
    let subjects = "UPDATE messages SET subject = 'Quarterly 100%', header_from = 'Lisa <lisa@x>' WHERE id <> 3";
    site.database.change("filling", subjects, &[]).unwrap();
    let mut containing =
        |piece: &str, before| message_search::containing(&mut site.database, piece, before, 2).unwrap();
    let page = containing("aRTer", None);
    assert_eq!((&page.ids[..], page.next), (&[5, 4][..], Some(4)));
    let page = containing("aRTer", page.next);
    assert_eq!((&page.ids[..], page.next, page.looked_back_to), (&[2, 1][..], None, None));
    assert_eq!(containing("0%", None).ids, [5, 4]);
    assert!(containing("1%0", None).ids.is_empty());
    assert_eq!(containing("lisa <", None).ids, [5, 4]);
}
