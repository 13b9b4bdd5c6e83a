//! MySQL and MariaDB: the source of a message is kept where the server can take it, and never in the way of the message.

use crate::support_mysql::{Mail, TestDatabase, on_each_server};
use maildrop_command::ledger::{CopyState, Ledger, Record};
use maildrop_command::lock::{Acquired, NamedLock};
use mysql::prelude::Queryable;
use std::time::Duration;

on_each_server!(
    a_source_is_kept_byte_for_byte,
    a_source_is_kept_once,
    a_source_that_the_server_cannot_take_is_left_out_and_the_delivery_recorded,
);

const MIB: usize = 1 << 20;

fn record<'a>(mail: &'a Mail, source: &'a [u8]) -> Record<'a> {
    let mut record = mail.record(CopyState::Delivered(None), CopyState::Delivered(None));
    if let Some(message) = &mut record.message {
        message.raw = Some(source);
        message.size = source.len() as u64;
    }
    record
}

/// All byte values, in an order that repeats late.
fn source_of(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

fn max_allowed_packet(site: &TestDatabase) -> usize {
    site.admin().query_first("SELECT @@max_allowed_packet").unwrap().unwrap()
}

fn a_source_is_kept_byte_for_byte(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let most = max_allowed_packet(&site) - MIB;
    // Within the batch; as a parameter; in pieces above 16 MiB, where the server allows as much; as large as can be.
    for length in [0, 1, MIB, MIB + 1, 10 * MIB, (40 * MIB).min(most), most] {
        let mail = Mail::to("scuba");
        let source = source_of(length);
        database.record(&record(&mail, &source)).unwrap();
        let sum: String = site
            .admin()
            .query_first("SELECT SHA2(source, 256) FROM message_sources ORDER BY message_id DESC LIMIT 1")
            .unwrap()
            .unwrap();
        let wanted: String = {
            use sha2::{Digest, Sha256};
            Sha256::digest(&source).iter().map(|b| format!("{b:02x}")).collect()
        };
        assert_eq!(sum, wanted, "{length} bytes");
        assert!(database.look(&mail.keys()).unwrap().iter().all(|history| history.delivered.is_some()));
    }
}

fn a_source_is_kept_once(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    for length in [1000, 3 * MIB] {
        let to_scuba = Mail::to("scuba");
        let to_doug = to_scuba.also_to("doug");
        let (first, second) = (source_of(length), vec![b'x'; length]);
        database.record(&record(&to_scuba, &first)).unwrap();
        database.record(&record(&to_doug, &second)).unwrap();
        let kept: Vec<u8> = site
            .admin()
            .query_first("SELECT source FROM message_sources ORDER BY message_id DESC LIMIT 1")
            .unwrap()
            .unwrap();
        assert!(kept == first);
    }
    let kept: Option<u64> = site.admin().query_first("SELECT COUNT(*) FROM message_sources").unwrap();
    assert_eq!(kept, Some(2));
}

fn a_source_that_the_server_cannot_take_is_left_out_and_the_delivery_recorded(server: &str) {
    let site = TestDatabase::new(server);
    let mut database = site.connect();
    let mail = Mail::to("scuba");
    assert!(matches!(database.acquire(&mail.lock, Duration::ZERO).unwrap(), Acquired::Held));
    let source = source_of(max_allowed_packet(&site) + 1);
    database.record(&record(&mail, &source)).unwrap();
    assert!(database.look(&mail.keys()).unwrap().iter().all(|history| history.delivered.is_some()));
    let kept: Option<u64> = site.admin().query_first("SELECT COUNT(*) FROM message_sources").unwrap();
    assert_eq!(kept, Some(0));
}
