use super::*;
use crate::base::files::create_directory;
use crate::site::embedded::Embedded;
use std::path::Path;
use uuid::Uuid;

const BYTES: &[u8] = b"Message-ID: <1@x>\r\nSubject: x\r\n\r\nx\r\n";

fn request(suspect: bool) -> Request {
    Request { id: Uuid::from_u128(7), suspect, ..Request::to(&["doug@x"], BYTES.len()) }
}

/// A worker of a site in this folder.
fn with_worker(folder: &Path, play: impl FnOnce(&mut Worker<'_>)) {
    let mail = folder.join("mail");
    create_directory(&mail).unwrap();
    let site = Site::embedded(Embedded::new(mail));
    let messages = crate::service::configured(folder).service.messages();
    let watchdog = crate::service::process_watchdog::start().unwrap();
    play(&mut Worker {
        site: &site,
        messages,
        watchdog,
        sessions: Sessions::default(),
        logins: site::Logins::default(),
    });
}

#[test]
fn a_message_is_answered_and_the_next_one_is_delivered_by_the_same_session() {
    let folder = tempfile::tempdir().unwrap();
    with_worker(folder.path(), |worker| {
        let mut opened = Vec::new();
        for leaves in [false, true] {
            let frame = Header::Deliver(request(false)).frame(BYTES).unwrap();
            let answer = worker.answer(frame, Instant::now(), |had_it_alone| {
                assert!(!had_it_alone);
                leaves
            });
            let Ok((Header::Reply(reply), rest)) = Header::read(&answer) else { panic!("{answer:?}") };
            assert!(rest.is_empty() && reply.id == Uuid::from_u128(7) && reply.leaving == leaves);
            assert_eq!(reply.results.iter().map(Verdict::class).collect::<Vec<_>>(), [2]);
            opened.push(reply.logins.database);
            worker.between_deliveries();
        }
        assert_eq!(opened, [1, 0]);
        let frame = Header::Deliver(request(true)).frame(BYTES).unwrap();
        worker.answer(frame, Instant::now(), |had_it_alone| {
            assert!(had_it_alone, "it ends, since the message has crashed another worker");
            had_it_alone
        });
    });
}

#[test]
fn what_is_no_message_of_ours_goes_back_as_it_came() {
    let folder = tempfile::tempdir().unwrap();
    with_worker(folder.path(), |worker| {
        let others = [b"hello".to_vec(), Header::Go { id: Uuid::nil() }.frame(b"").unwrap()];
        for body in others {
            assert_eq!(worker.answer(body.clone(), Instant::now(), |_| panic!("it is asked")), body);
        }
    });
}

#[test]
fn sessions_are_reported_once() {
    let logins = |database, imap| site::Logins { database, imap };
    assert_eq!(opened_since(logins(2, 3), logins(7, 4)), Logins { database: 5, imap: 1 });
}
