//! `prune` forgets what is old, nothing that may still be needed, and deliveries do not notice.

use crate::support::database::Engine;
use crate::support::ledger_history::{self, Made};
use crate::support::program::{feed, program, wait_until};
use crate::support::site_fixture::{LISA, Scene};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};

on_each_engine!(
    what_is_old_is_forgotten_and_nothing_else,
    an_age_that_is_too_short_is_refused,
    a_missing_right_to_prune_is_reported_with_nothing_to_prune,
    sources_go_first_unless_a_copy_is_owed,
    many_attempts_go_in_batches_and_none_that_is_open,
    a_message_whose_lock_is_held_is_left,
    deliveries_go_on_meanwhile,
);

const AGES: [&str; 4] = ["--messages-older-than", "400d", "--attempts-older-than", "30d"];

/// What `prune` says it did, of one kind.
fn pruned(scene: &Scene, arguments: &[&str], kind: &str) -> Value {
    pruned_by(&scene.path("config.toml"), arguments, kind)
}

fn pruned_by(config: &str, arguments: &[&str], kind: &str) -> Value {
    let output = program(&["prune", "--json", "--config", config]).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    all.into_iter().find(|done| done["what"] == kind).unwrap_or_else(|| panic!("{output:?}"))
}

fn operator(scene: &mut Scene) {
    let operator = format!("{}_o", scene.run);
    scene.database.create_operator(&operator, "secret");
    scene.configure(|settings| (settings.role, settings.database_password) = (operator, "secret".into()));
}

fn administrator(scene: &mut Scene) {
    let (role, password) = crate::support::database::ADMINISTRATOR;
    scene.configure(|settings| (settings.role, settings.database_password) = (role.into(), password.into()));
}

/// The Message-IDs of a table, up to their first dot.
fn known(scene: &mut Scene, table: &str) -> Vec<String> {
    let ids = scene.database.texts(&format!("SELECT DISTINCT message_id FROM {table} ORDER BY message_id"));
    ids.iter().map(|id| id.trim_start_matches('<').split('.').next().unwrap().to_owned()).collect()
}

fn a_missing_right_to_prune_is_reported_with_nothing_to_prune(engine: Engine) {
    let mut scene = Scene::empty(engine);
    operator(&mut scene);
    for ages in [["--messages-older-than", "400d"], ["--attempts-older-than", "30d"], ["--sources-older-than", "7d"]] {
        assert_eq!(scene.subcommand(&[&["prune"], &ages[..]].concat()).status.code(), Some(0), "{ages:?}");
    }
    let role = &scene.settings.role;
    let role = if engine.is_postgres() { role.clone() } else { format!("'{role}'@'%'") };
    for table in ["attempts", "copies", "messages", "message_sources"] {
        scene.database.execute(&format!("REVOKE DELETE ON {table} FROM {role}"));
    }
    for ages in [["--messages-older-than", "400d"], ["--attempts-older-than", "30d"], ["--sources-older-than", "7d"]] {
        let refused = scene.subcommand(&[&["prune"], &ages[..]].concat());
        let errors = String::from_utf8(refused.stderr).unwrap();
        assert!(
            refused.status.code() == Some(69) && errors.contains("the role of database.roles.operator lacks a right"),
            "{errors}"
        );
    }
}

fn what_is_old_is_forgotten_and_nothing_else(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    for id in ["old", "owed", "died", "heard"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    scene.deliver("scuba", scene.message("old")).delivered();
    let of = |id: &str| format!("(SELECT id FROM messages WHERE message_id LIKE '<{id}.%')");
    scene.database.execute(&format!(
        "UPDATE copies SET state = 'owed', reason = 'x' WHERE role = 'sender' AND message = {}",
        of("owed")
    ));
    scene.database.execute("UPDATE attempts SET ended_at = NULL, outcome = NULL WHERE message_id LIKE '<died.%'");
    scene.days_pass(500);
    scene.deliver("doug", scene.message("young")).delivered();
    // Tried again, and found to be there already.
    scene.deliver("doug", scene.message("heard")).delivered();

    operator(&mut scene);
    let dry = [&AGES[..], &["--dry-run"]].concat();
    let would = pruned(&scene, &dry, "messages");
    assert_eq!((&would["would_remove"], &would["removed"]), (&1.into(), &0.into()), "{would}");
    assert_eq!((&would["kept_owed"], &would["kept_referenced"]), (&1.into(), &2.into()), "{would}");
    let would = pruned(&scene, &dry, "attempts");
    // Of each copy: two of old to doug and one to scuba with Sent, of owed, of heard.
    assert_eq!((&would["would_remove"], &would["kept_open"]), (&8.into(), &2.into()), "{would}");
    assert_eq!(known(&mut scene, "messages"), ["died", "heard", "old", "owed", "young"]);
    let output = String::from_utf8(scene.subcommand(&[&["prune"], &dry[..]].concat()).stdout).unwrap();
    assert!(
        output.contains("would remove")
            && output.contains("1 with a copy that is owed, 2 with later attempts or notifications"),
        "{output}"
    );

    let done = pruned(&scene, &AGES, "messages");
    assert_eq!((&done["removed"], &done["would_remove"]), (&1.into(), &Value::Null), "{done}");
    assert_eq!(known(&mut scene, "messages"), ["died", "heard", "owed", "young"]);
    assert_eq!(known(&mut scene, "attempts"), ["died", "heard", "young"]);
    assert_eq!(scene.database.count("SELECT count(*) FROM copies"), 8);
    assert_eq!(pruned(&scene, &AGES, "messages")["removed"], 0);
    assert_eq!(pruned(&scene, &AGES, "attempts")["removed"], 0);

    // What is remembered is not delivered again; what is forgotten is.
    administrator(&mut scene);
    let before = scene.inbox("doug").len();
    for id in ["young", "heard", "owed"] {
        assert!(scene.deliver("doug", scene.message(id)).delivered().starts_with("INBOX already there"), "{id}");
    }
    assert_eq!(scene.inbox("doug").len(), before);
    assert!(scene.deliver("doug", scene.message("old")).delivered().starts_with("INBOX appended"));
    assert_eq!(scene.inbox("doug").len(), before + 1);
}

fn an_age_that_is_too_short_is_refused(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("kept")).delivered();
    scene.days_pass(500);
    // Five days and imap.append_grace, seven minutes.
    for option in ["--attempts-older-than", "--messages-older-than"] {
        let output = scene.subcommand(&["prune", option, "5d 7m"]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{errors}");
        assert!(errors.contains(option) && errors.contains("would be delivered again"), "{errors}");
    }
    scene.configure(|settings| settings.more = "[retention]\nmessages_older_than = \"5d\"\n".into());
    let output = scene.subcommand(&["prune"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert_eq!(scene.database.count("SELECT count(*) FROM messages"), 1);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts"), 2);

    // Without an age, only what has a fixed one; from the configuration, without any option, it is what a timer runs.
    scene.configure(|settings| settings.more.clear());
    assert_eq!(pruned(&scene, &[], "failures")["removed"], 0);
    scene.configure(|settings| settings.more = "[retention]\nmessages_older_than = \"5d 11m\"\n".into());
    assert_eq!(pruned(&scene, &[], "messages")["removed"], 1);
    let left = scene.database.count("SELECT (SELECT count(*) FROM copies) + (SELECT count(*) FROM attempts)");
    assert_eq!(left, 0, "with a message go its copies and attempts");
}

fn sources_go_first_unless_a_copy_is_owed(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.configure(|settings| {
        settings.more = "[record]\nkeep_source = true\n[retention]\nsources_older_than = \"7d\"\n".into()
    });
    for id in ["a", "b", "owed"] {
        scene.deliver("doug", scene.message(id)).delivered();
    }
    scene.database.execute(
        "UPDATE copies SET state = 'owed', reason = 'x' WHERE role = 'sender' AND message = \
         (SELECT id FROM messages WHERE message_id LIKE '<owed.%')",
    );
    scene.days_pass(8);
    scene.deliver("doug", scene.message("young")).delivered();
    let done = pruned(&scene, &[], "sources");
    assert_eq!((&done["removed"], &done["kept_owed"]), (&2.into(), &1.into()), "{done}");
    let kept = scene.database.texts(
        "SELECT m.message_id FROM messages m JOIN message_sources s ON s.message_id = m.id ORDER BY m.message_id",
    );
    assert!(kept.len() == 2 && kept[0].starts_with("<owed.") && kept[1].starts_with("<young."), "{kept:?}");
    assert_eq!(scene.database.count("SELECT count(*) FROM messages"), 4);
    assert!(scene.deliver("doug", scene.message("a")).delivered().starts_with("INBOX already there"));
}

fn many_attempts_go_in_batches_and_none_that_is_open(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let days_ago = |days: u64| ledger_history::now() - days * 86_400_000_000;
    let mut made = Vec::new();
    for number in 0..2600 {
        // Two thousand old ones, seven hundred of which began in one microsecond; the others are young. Each third is open.
        let (first, young) = (days_ago(40), days_ago(20));
        let began = match number {
            0..700 => first,
            700..2000 => first + number * 1_000_000,
            _ => young + number * 1_000_000,
        };
        let outcome = (number % 3 != 0).then_some("busy");
        made.push(Made { number, role: "recipient", began, outcome, stages: "{}" });
        made.push(Made { number, role: "sender", began, outcome, stages: "{}" });
    }
    scene.add_attempts(&made);
    let old = made.iter().filter(|made| made.number < 2000);
    let (open, ended): (Vec<_>, Vec<_>) = old.partition(|made| made.outcome.is_none());
    let done = pruned(&scene, &AGES, "attempts");
    assert_eq!((&done["removed"], &done["kept_open"]), (&ended.len().into(), &open.len().into()), "{done}");
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts"), (made.len() - ended.len()) as i64);
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 2 * 867);
}

fn a_message_whose_lock_is_held_is_left(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("held")).delivered();
    scene.days_pass(500);
    let key = program(&["lock", "key", "--json", &scene.message_id("held")]).output().unwrap().stdout;
    let key: Value = serde_json::from_slice(&key).unwrap();
    let mut holder = scene.session();
    holder.texts(&if engine.is_postgres() {
        format!("SELECT pg_advisory_lock({})::text", key["postgresql"].as_str().unwrap())
    } else {
        format!("SELECT CAST(GET_LOCK('{}', 0) AS char)", key["mysql"].as_str().unwrap())
    });
    let done = pruned(&scene, &AGES, "messages");
    assert_eq!((&done["removed"], &done["kept_locked"]), (&0.into(), &1.into()), "{done}");
    assert_eq!(scene.database.count("SELECT count(*) FROM copies"), 2);
    drop(holder);
    wait_until("it is forgotten", || pruned(&scene, &AGES, "messages")["removed"] == 1);
}

/// Old messages are replayed, and new ones delivered to two recipients at once, while the ledger is pruned: a new one is
/// there once; an old one is remembered or forgotten, and nothing in between; and no delivery fails for the pruning's sake.
fn deliveries_go_on_meanwhile(engine: Engine) {
    const OLD: usize = 4;
    const NEW: usize = 4;
    let mut scene = Scene::with(engine, &["lisa", "doug", "scuba"]);
    let old: Vec<String> = (0..OLD).map(|n| scene.message(&format!("old{n}"))).collect();
    let new: Vec<String> = (0..NEW).map(|n| scene.message(&format!("new{n}"))).collect();
    for message in &old {
        scene.deliver("doug", message).delivered();
    }
    scene.days_pass(500);
    // In the order of time these come first, so that pruning has begun, and is not over, when the replays come.
    scene.add_messages(200, 600);

    let (over, config) = (AtomicBool::new(false), scene.path("config.toml"));
    // A delivery that finds the lock held is deferred, as ever; then Postfix brings the message back.
    let delivered = |recipient: &str, message: &str| {
        wait_until("it is delivered", || {
            let outcome =
                feed(program(&["--config", &config, "--sender", LISA, "--recipient", recipient]), message.as_bytes());
            if outcome.exit == Some(75) {
                outcome.deferred("4.3.0 another delivery of this message holds its lock");
            }
            outcome.exit == Some(0)
        });
    };
    let removed = std::thread::scope(|scope| {
        let pruning = scope.spawn(|| {
            let mut removed = 0;
            while !over.load(Ordering::SeqCst) {
                removed += pruned_by(&config, &AGES, "messages")["removed"].as_u64().unwrap();
            }
            removed
        });
        let replays = scope.spawn(|| old.iter().for_each(|message| delivered("doug@mail.axial.net", message)));
        let to_doug = scope.spawn(|| new.iter().for_each(|message| delivered("doug@mail.axial.net", message)));
        new.iter().for_each(|message| delivered("scuba@mail.axial.net", message));
        let ended = [replays.join(), to_doug.join()];
        over.store(true, Ordering::SeqCst);
        ended.into_iter().for_each(|ended| ended.unwrap());
        pruning.join().unwrap()
    });
    assert!(removed >= 200, "{removed}");

    let count = |mailbox: &[crate::support::imap::InMailbox], id: &str| {
        let id = scene.message_id(id);
        mailbox.iter().filter(|message| message.field("Message-ID") == id).count()
    };
    let (doug, scuba, sent) = (scene.inbox("doug"), scene.inbox("scuba"), scene.sent("lisa"));
    for n in 0..NEW {
        let id = format!("new{n}");
        assert_eq!((count(&doug, &id), count(&scuba, &id), count(&sent, &id)), (1, 1, 1), "{id}");
    }
    for n in 0..OLD {
        let id = format!("old{n}");
        let times = count(&doug, &id);
        assert!(
            (1..=2).contains(&times) && count(&sent, &id) == times,
            "{id}: {times} in INBOX, {} in Sent",
            count(&sent, &id)
        );
    }
    // Whatever came of it, the ledger knows them now, both copies of each.
    for message in old.iter().chain(&new) {
        assert_eq!(scene.deliver("doug", message).delivered(), "INBOX already there, Sent already there");
    }
    assert_eq!(scene.inbox("doug").len(), doug.len());
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
}
