//! A network that drops everything from some point of a delivery on, each point in turn, and tells nobody: on the way to
//! the database, and on the way to the mailbox store. The delivery ends by its deadline with 75. The database, which
//! hears nothing of that, lets go of the lock by itself. Then every message is delivered, once.
//!
//! (server_outages.rs does the same with the network itself, at random moments.)

use crate::support::database::Engine;
use crate::support::program::{PATIENCE, Running, wait_until};
use crate::support::run::{Report, holders_of};
use crate::support::site_fixture::{Scene, Settings};
use crate::support::wire::{Fate, Wire};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

on_each_engine!(on_the_way_to_the_database, on_the_way_to_the_mailbox_store);

/// Of the deliveries, on a machine that has time for them.
const DEADLINE: Duration = Duration::from_secs(4);

/// On one that has not.
const UNHURRIED: Duration = Duration::from_secs(60);

/// What the end of a process may take, beyond it, on a machine with much to do.
const GRACE: Duration = Duration::from_secs(20);

/// How many points are tried at once.
const AT_ONCE: usize = 12;

fn on_the_way_to_the_database(engine: Engine) {
    let stuck = silence(engine, "silence from the database", |settings| &mut settings.database, Duration::from_secs(3));
    assert!(stuck > 0, "no lock outlived the delivery that had it: the wire was not silent to the server");
}

fn on_the_way_to_the_mailbox_store(engine: Engine) {
    // The time limits of the lock's session are longer than that, so they are not what frees it.
    let stuck =
        silence(engine, "silence from the mailbox store", |settings| &mut settings.imap, Duration::from_secs(20));
    assert_eq!(stuck, 0, "a process that ends frees its lock: the database notices");
}

/// How many locks the database kept for longer than it may take to `hear` that a process has ended.
fn silence(engine: Engine, kind: &str, way: fn(&mut Settings) -> &mut (String, u16), hear: Duration) -> usize {
    let mut scene = Scene::with(engine, &["doug"]);
    scene.member("maria");
    let mut deadline = deadline(&scene);
    scene.member("lisa");
    let (mut report, mut ids, mut queue) = (Report::default(), Vec::new(), Vec::new());
    let (mut administrator, mut stuck) = (scene.session(), 0);
    // Until some need no more pieces than that.
    let mut nobody_got_through = true;
    while nobody_got_through {
        assert!(ids.len() < 200, "nobody gets through");
        scene.configure(|settings| settings.more = format!("[delivery]\ndeadline = \"{}s\"\n", deadline.as_secs()));
        let mut too_slow = false;
        let points = ids.len()..ids.len() + AT_ONCE;
        let deliveries: Vec<_> = points.map(|point| begin(&scene, point, way)).collect();
        for (id, left, delivery) in deliveries {
            let outcome = delivery.end_within(PATIENCE);
            let fell_silent = left.load(Ordering::SeqCst) == 0;
            assert!(outcome.took < deadline + GRACE, "{id}: {outcome:?}");
            outcome.one_line();
            match outcome.exit {
                Some(0) => {}
                Some(75) => queue.push(id.clone()),
                _ => panic!("{id}: {outcome:?}"),
            }
            nobody_got_through &= fell_silent || outcome.exit != Some(0);
            too_slow |= !fell_silent && outcome.exit != Some(0);
            report.faults += usize::from(fell_silent);
            report.deferred += usize::from(outcome.exit == Some(75));
            report.deliveries += 1;
            report.tries += 1;
            ids.push(id);
        }
        let holders = holders_of(engine, ids.iter().rev().take(AT_ONCE).map(|id| scene.message_id(id)));
        let ended = Instant::now();
        let mut held = administrator.texts(&holders).len();
        while held > 0 && ended.elapsed() < hear {
            std::thread::sleep(Duration::from_millis(50));
            held = administrator.texts(&holders).len();
        }
        stuck += held;
        // Nothing was in its way: the machine has become busier.
        if too_slow {
            deadline = (deadline * 2).min(UNHURRIED);
        }
    }
    // (A delivery and an IMAP server take turns at least this often, however the pieces fall.)
    assert!(report.faults >= 6, "only {} pieces went over the wire", report.faults);
    assert!(!queue.is_empty(), "nobody minded");

    let holders = holders_of(engine, queue.iter().map(|id| scene.message_id(id)));
    // The time limits of the lock's session: half a minute past the deadline, or a minute.
    wait_until("the server to let go of the locks", || administrator.texts(&holders).is_empty());
    // Postfix comes again, later.
    for id in &queue {
        wait_until("it is delivered", || {
            scene.ten_minutes_pass();
            report.tries += 1;
            let outcome = scene.deliver("doug", scene.message(id));
            report.adopted += outcome.line.matches("adopted").count();
            report.deferred += usize::from(outcome.exit == Some(75));
            outcome.exit == Some(0)
        });
    }

    for (name, mailbox) in [("doug", scene.inbox("doug")), ("lisa", scene.sent("lisa"))] {
        let wanted = ids.iter().map(|id| scene.message_id(id));
        report.compare(name, wanted, mailbox.iter().map(|copy| copy.field("Message-ID")));
    }
    report.taken_out = scene.log().matches("removed a duplicate copy").count();
    report.tell(engine, kind);
    println!("{stuck} locks were held for those that had ended");
    let database = &mut scene.database;
    let copies = "SELECT count(*) FROM copies WHERE state = 'delivered' AND recipient LIKE 'doug@%'";
    assert_eq!(database.count(copies), 2 * ids.len() as i64);
    assert_eq!(database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    stuck
}

/// Enough for those that fall silent late: four times what as many take here, with nothing in their way.
fn deadline(scene: &Scene) -> Duration {
    let deliver = |number| scene.start("maria", &[], scene.message(&format!("unhurried{number}")));
    let unhurried: Vec<_> = (0..AT_ONCE).map(deliver).collect();
    let took = unhurried.into_iter().map(|delivery| delivery.end_within(PATIENCE).took).max().unwrap_or_default();
    Duration::from_secs((took * 4).max(DEADLINE).as_secs_f64().ceil() as u64)
}

/// Begins the delivery for which the wire falls silent at this point; with what is left until there.
fn begin(
    scene: &Scene,
    point: usize,
    way: fn(&mut Settings) -> &mut (String, u16),
) -> (String, Arc<AtomicUsize>, Running) {
    let id = format!("point{point}");
    // One more than pieces that pass.
    let left = Arc::new(AtomicUsize::new(point + 1));
    let config = scene.other_configuration(&format!("{id}.toml"), |settings| {
        let way = way(settings);
        let left = left.clone();
        let wire = Wire::to(way.clone(), move |_, _| {
            match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
                Ok(1) => Fate::Silence,
                _ => Fate::Pass,
            }
        });
        *way = ("127.0.0.1".into(), wire.address.port());
    });
    let command = scene.command_by(&config, "doug", &[]);
    let delivery = Running::start(command, scene.message(&id).as_bytes());
    (id, left, delivery)
}
