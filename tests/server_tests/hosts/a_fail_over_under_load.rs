//! PostgreSQL with a synchronous standby: the primary is killed among deliveries, and the standby takes over. Nothing is lost, nothing
//! is there twice, and the ledger of the new primary has it all.

use super::pair::{Pair, go_to};
use crate::support::database::{Connection, Engine};
use crate::support::program::{feed, program, wait_until};
use crate::support::scene::LISA;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MESSAGES: usize = 24;
const RECIPIENTS: [&str; 2] = ["doug", "scuba"];
/// How many are delivered at a time.
const AT_ONCE: usize = 6;
/// How soon one that was put off is tried again, as Postfix would, if later.
const BACK_OFF: Duration = Duration::from_secs(3);
/// On a machine that has much else to do; a fail-over takes some seconds, and what is in doubt settles after twenty more.
const IN_ALL: Duration = Duration::from_secs(480);

#[test]
fn a_primary_that_dies_among_deliveries_loses_nothing_and_doubles_nothing() {
    let pair = Pair::start("POSTGRES17");
    let mut scene = pair.site(&[], "");
    for name in ["scuba", "lisa"] {
        scene.member(name);
    }
    pair.be_synchronous();
    scene.configure(|settings| {
        settings.imap_more = "settle = \"21s\"".into();
        settings.more = "[delivery]\ndeadline = \"20s\"\n".into();
    });
    go_to(&mut scene, &[&pair.primary, &pair.standby], "");

    let (config, log) = (scene.path("config.toml"), scene.path("log"));
    let messages = (0..MESSAGES).map(|number| scene.message(&format!("m{number}")));
    let owed = messages.flat_map(|message| RECIPIENTS.map(|to| (message.clone(), to, Instant::now())));
    let queue: Mutex<VecDeque<(String, &str, Instant)>> = Mutex::new(owed.collect());
    let (done, put_off, began) = (AtomicUsize::new(0), AtomicUsize::new(0), Instant::now());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while done.load(Ordering::SeqCst) < MESSAGES * RECIPIENTS.len() {
                    assert!(began.elapsed() < IN_ALL, "{}", std::fs::read_to_string(&log).unwrap());
                    let next = queue.lock().unwrap().pop_front();
                    let Some((message, to, since)) = next else {
                        thread::yield_now();
                        continue;
                    };
                    // The queue is in the order of these moments.
                    thread::sleep(since.saturating_duration_since(Instant::now()));
                    let to_address = format!("{to}@mail.axial.net");
                    let arguments = ["--config", &config, "--sender", LISA, "--recipient", &to_address];
                    let outcome = feed(program(&arguments), message.as_bytes());
                    match outcome.exit {
                        Some(0) => drop(done.fetch_add(1, Ordering::SeqCst)),
                        Some(75) => {
                            put_off.fetch_add(1, Ordering::SeqCst);
                            queue.lock().unwrap().push_back((message, to, Instant::now() + BACK_OFF));
                        }
                        _ => panic!("{outcome:?}"),
                    }
                }
            });
        }
        wait_until("some are delivered", || done.load(Ordering::SeqCst) > MESSAGES / 3);
        pair.primary.kill();
        pair.promote();
    });
    eprintln!("{} put off, {:?} in all", put_off.load(Ordering::SeqCst), began.elapsed());

    let all: BTreeSet<String> = (0..MESSAGES).map(|number| scene.message_id(&format!("m{number}"))).collect();
    let mut database = Connection::open_at(Engine::Postgres17, &pair.standby.address(), Some(&scene.database.name));
    for (name, mailbox) in [("doug", "INBOX"), ("scuba", "INBOX"), ("lisa", "Sent")] {
        let recorded = format!(
            "SELECT m.message_id FROM copies c JOIN messages m ON m.id = c.message \
             WHERE c.state = 'delivered' AND c.imap_user = '{}' AND c.mailbox = '{mailbox}'",
            scene.user(name)
        );
        // Doug's has the first message of the site, too, which has no author here.
        let recorded = database.texts(&recorded).into_iter().filter(|id| all.contains(id));
        assert_eq!(recorded.collect::<BTreeSet<_>>(), all, "{name}/{mailbox}");
        let first = usize::from(name == "doug");
        assert_eq!(scene.mailbox(name, mailbox).len(), MESSAGES + first, "{name}/{mailbox}");
    }
    drop(database);
    // So that the site can be removed.
    pair.primary.start();
    pair.be_alone();
    scene.database.connect_again();
}
