//! What the page shows of what is in a message, and the operations log, on each engine, with the rights that the grants files
//! give.

use crate::support::database::{Database, Engine};
use crate::support::program::program;
use crate::support::site_fixture::Scene;
use crate::support::visitor::{Page, rows, text};
use crate::web_ui::screens::link;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::config::Config;
use maildrop_command::database::DatabaseFailure;
use maildrop_command::ledger::operations_log::{Actor, Affected, Operation, read, write};
use maildrop_command::site::Site;
use std::time::{Duration, UNIX_EPOCH};

on_two_engines!(
    a_reader_sees_it_out_of_a_mailbox,
    without_mailboxes_it_is_shown_from_the_sources_or_what_is_in_the_way_is_reported,
    rows_of_the_operations_log_are_added_by_those_who_act_and_deleted_by_prune_alone
);

/// The configuration of a page, whose role has the rights that `create` gives.
fn configuration(scene: &mut Scene, create: fn(&mut Database, &str, &str)) -> (Config, String) {
    let role = format!("{}_r", scene.run);
    create(&mut scene.database, &role, "secret");
    scene.file("reader.password", "secret\n", 0o600);
    let path = scene.other_configuration("reader.toml", |settings| settings.role.clone_from(&role));
    let text = std::fs::read_to_string(&path).unwrap().replace("database.password", "reader.password");
    std::fs::write(&path, text).unwrap();
    (Config::load(path.as_ref()).unwrap(), role)
}

/// The first message's page.
fn message(visitor: &crate::support::visitor::Visitor<'_>) -> String {
    let list = visitor.get("/");
    let found = list.shown().split("href=\"").find(|rest| rest.starts_with("/messages/")).expect("a message");
    found[..74].to_owned()
}

fn a_reader_sees_it_out_of_a_mailbox(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    let letter = scene.message("letter").replace("\n\nletter\n", "\n\nDear Doug,\nthis is secret.\n");
    scene.deliver("doug", &letter).delivered();
    let (config, _) = configuration(&mut scene, Database::create_page_with_mailboxes);
    let page = Page::of(&Site::configured(config).unwrap());
    let viewer = page.log_in(&link(&mut scene, "viewer"));
    let about = message(&viewer);
    assert_eq!(viewer.get(&format!("{about}/content")).status.as_u16(), 403);
    let reader = page.log_in(&link(&mut scene, "reader"));
    let shown = reader.get(&format!("{about}/content"));
    assert!(text(shown.shown()).contains("Dear Doug, this is secret."), "{}", shown.body);
    assert!(reader.get(&format!("{about}/source")).shown().contains("Dear Doug,\r\nthis is secret.\r\n"));
    let operator = page.log_in(&link(&mut scene, "operator"));
    let log = operator.get("/log");
    let screen = text(log.shown());
    // The message by its subject.
    let user = scene.user("doug");
    assert!(screen.contains(&format!("looked at content letter in INBOX of {user} shown")), "{screen}");
    assert!(screen.contains(&format!("downloaded letter in INBOX of {user} , source shown")), "{screen}");
    // With the three links to log in.
    assert_eq!(rows(&log.body), 5);
}

fn without_mailboxes_it_is_shown_from_the_sources_or_what_is_in_the_way_is_reported(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.deliver("doug", scene.message("unkept")).delivered();
    let (config, role) = configuration(&mut scene, Database::create_page);
    let page = Page::of(&Site::without_mailboxes(config).unwrap());
    let reader = page.log_in(&link(&mut scene, "reader"));
    let unkept = format!("{}/content", message(&reader));
    let no_rights = reader.get(&unkept);
    assert_eq!(no_rights.status.as_u16(), 404);
    assert!(text(&no_rights.body).contains("may not read the sources that record.keep_source keeps"), "{no_rights:?}");

    let role = if engine.is_postgres() { role } else { format!("'{role}'@'%'") };
    scene.database.execute(&format!("GRANT SELECT ON message_sources TO {role}"));
    let not_kept = reader.get(&unkept);
    assert!(text(&not_kept.body).contains("its source is not kept (record.keep_source)"), "{not_kept:?}");
    assert!(
        text(&not_kept.body).contains("mailboxes may not be opened here (web.allow_mailbox_access)"),
        "{not_kept:?}"
    );

    scene.configure(|settings| settings.more += "[record]\nkeep_source = true\n");
    scene.deliver("doug", scene.message("kept")).delivered();
    let kept = format!("{}/content", message(&reader));
    assert_ne!(kept, unkept);
    assert!(text(reader.get(&kept).shown()).contains("Text kept Parts"), "{}", text(&reader.get(&kept).body));
    let operator = page.log_in(&link(&mut scene, "operator"));
    let screen = text(operator.get("/log").shown());
    assert!(
        screen.contains("shown, from the ledger's sources") && screen.matches("not shown: ").count() == 2,
        "{screen}"
    );

    // Who may not write down that he looks does not see it.
    scene.database.execute(&format!("REVOKE INSERT ON operations FROM {role}"));
    let refused = reader.get(&kept);
    assert_eq!(refused.status.as_u16(), 503);
    assert!(!text(&refused.body).contains("kept"), "{refused:?}");
}

fn rows_of_the_operations_log_are_added_by_those_who_act_and_deleted_by_prune_alone(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let _ = link(&mut scene, "viewer");
    // That a link was made stands there, too.
    scene.database.execute("DELETE FROM operations");
    let (config, _) = configuration(&mut scene, Database::create_page);
    let operators = Config::load(scene.path("operator.toml").as_ref()).unwrap();
    let patience = || Deadline::after(Duration::from_mins(2));
    let identity = [0xab; 32];
    let id = "<ü'\\\"; DROP TABLE operations; --\u{1f4a3}@x>";
    for (who, config) in [("page", config), ("operator", operators)] {
        let mut database = Site::without_mailboxes(config).unwrap().open_database(None, patience()).unwrap();
        let actor = Actor { name: who, interface: "web UI", role: None, host: "mx1" };
        let affected = Affected { identity: Some(&identity), message_id: Some(id), ..Affected::default() };
        write(database.as_mut(), actor, Operation::Restored, affected, "appended").unwrap();
        let rows = read(database.as_mut(), None, "", 1).unwrap();
        let row = &rows[0];
        assert_eq!((row.actor.as_str(), row.message_id.as_deref(), row.outcome.as_str()), (who, Some(id), "appended"));
        assert_eq!((row.identity.as_deref(), row.user.as_deref()), (Some("ab".repeat(32).as_str()), None));
        // By UTC, whatever the time zone of the session is.
        let now = i64::try_from(UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
        assert!((now - row.created_at).abs() < 1_800_000_000, "{row:?} at {now}");
        let changes: &[&str] = match who {
            "page" => &["UPDATE operations SET actor = 'x' WHERE id < 0", "DELETE FROM operations WHERE id < 0"],
            _ => &["UPDATE operations SET actor = 'x' WHERE id < 0"],
        };
        for change in changes {
            let refused = database.change("changing history", change, &[]).unwrap_err();
            assert_eq!(refused.failure, DatabaseFailure::AccessDenied, "{who}: {change}: {refused}");
        }
    }
    scene.database.execute(if engine.is_postgres() {
        "UPDATE operations SET created_at = created_at - interval '400 days' WHERE actor = 'page'"
    } else {
        "UPDATE operations SET created_at = created_at - INTERVAL 400 DAY WHERE actor = 'page'"
    });
    let config = scene.path("operator.toml");
    let prune = program(&["prune", "--operations-older-than", "365d", "--json", "--config", &config]).output().unwrap();
    assert!(String::from_utf8_lossy(&prune.stdout).contains("\"removed\":1"), "{prune:?}");
    // The operator's row has stayed, and a row of the prune has come.
    let rows = scene.database.texts("SELECT operation FROM operations ORDER BY id");
    assert_eq!(rows, ["restored", "pruned"]);
}
