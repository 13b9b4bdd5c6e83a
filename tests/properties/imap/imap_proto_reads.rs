//! What imap-proto, another reader of IMAP, reads in a reply: ours must read the same. `super::Read` is what ours has read.

use super::{ArbitraryMessage, Read};
use imap_proto::rfc4315::UidSetMember;
use imap_proto::{AttributeValue, MailboxDatum, Response, ResponseCode, Status, StatusAttribute};

/// What imap-proto reads in these bytes; `None` where it does not read all of them, or panics, as it does on some.
pub fn response(sent: &[u8]) -> Option<Response<'_>> {
    // It recurses, and would overflow its stack. What it reads in a number with a sign is not for us to follow.
    if sent.iter().filter(|byte| **byte == b'(').count() > 50 {
        return None;
    }
    match std::panic::catch_unwind(|| Response::parse(sent)).ok()? {
        Ok(([], response)) => Some(response),
        _ => None,
    }
}

/// Compares what ours has read in these bytes with what imap-proto reads there, if anything.
///
/// # Panics
/// Where they differ.
pub fn the_same(sent: &[u8], ours: &Read) {
    if let Some(theirs) = response(sent) {
        compare(&theirs, ours);
    }
}

/// # Panics
/// Where they differ.
pub fn compare(theirs: &Response<'_>, ours: &Read) {
    match theirs {
        Response::Done { tag, status, outcome } => {
            assert_eq!(ours.tag.as_deref(), Some(tag.0.as_ref()));
            compare_status(status, outcome.code.as_ref(), ours);
        }
        Response::Data { status, outcome } => {
            assert_eq!(ours.tag, None);
            compare_status(status, outcome.code.as_ref(), ours);
        }
        Response::MailboxData(MailboxDatum::Status { status, .. }) => {
            let (mut validities, mut nexts) = (Vec::new(), Vec::new());
            for attribute in status {
                match attribute {
                    StatusAttribute::UidNext(uid) => nexts.push(*uid),
                    StatusAttribute::UidValidity(uid) => validities.push(*uid),
                    _ => {}
                }
            }
            // It takes 0 for a number as well.
            if let ([uid_validity], [uid_next]) = (validities.as_slice(), nexts.as_slice())
                && (*uid_validity != 0 && *uid_next != 0)
            {
                assert_eq!(ours.position, Some((*uid_validity, *uid_next)));
            }
        }
        Response::MailboxData(MailboxDatum::Search(uids)) if !uids.contains(&0) => {
            assert_eq!(ours.search.as_ref(), Some(uids));
        }
        Response::Fetch(1.., attributes) => compare_fetched(attributes, ours.fetched.as_ref()),
        _ => {}
    }
}

fn compare_status(status: &Status, code: Option<&ResponseCode<'_>>, ours: &Read) {
    let status = match status {
        Status::Ok => "OK",
        Status::No => "NO",
        Status::Bad => "BAD",
        Status::Bye => "BYE",
        Status::PreAuth => "PREAUTH",
    };
    assert_eq!(ours.status, Some(status));
    match code {
        Some(ResponseCode::TryCreate) => assert_eq!(ours.code, Some(("TRYCREATE".into(), String::new()))),
        Some(ResponseCode::AppendUid(uid_validity, uids)) => {
            // It takes 0 for a number as well.
            if let [UidSetMember::Uid(uid @ 1..)] = **uids
                && *uid_validity != 0
            {
                assert_eq!(ours.append_uid, Some((*uid_validity, uid)));
            }
        }
        _ => {}
    }
}

fn compare_fetched(attributes: &[AttributeValue<'_>], fetched: Option<&ArbitraryMessage>) {
    let mut expected = ArbitraryMessage::default();
    let mut seen = [0; 4];
    for attribute in attributes {
        match attribute {
            AttributeValue::Uid(uid) => (expected.uid, seen[0]) = (*uid, seen[0] + 1),
            AttributeValue::Rfc822Size(size) => (expected.size, seen[1]) = (Some((*size).into()), seen[1] + 1),
            AttributeValue::Flags(flags) => {
                let deleted = flags.iter().any(|flag| flag.eq_ignore_ascii_case("\\Deleted"));
                (expected.deleted, seen[2]) = (Some(deleted), seen[2] + 1);
            }
            // It leaves the backslashes of a quoted string in.
            AttributeValue::BodySection { data, .. } if !data.as_ref().is_some_and(|data| data.contains(&b'\\')) => {
                expected.body = data.as_ref().map(|data| data.to_vec());
                seen[3] += 1;
            }
            AttributeValue::ModSeq(_) => {}
            _ => return,
        }
    }
    // What is stated twice is wrong once.
    if seen[0] == 1 && expected.uid != 0 && seen.iter().all(|times| *times <= 1) {
        assert_eq!(fetched, Some(&expected));
    }
}
