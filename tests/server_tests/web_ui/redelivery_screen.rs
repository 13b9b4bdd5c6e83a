//! The page delivers again, on each engine and to a real Dovecot, by a role that has the rights that docs/web-ui.md names, and no others.

use crate::commands::finish_owed_copies::owed;
use crate::support::database::Engine;
use crate::support::program::as_delivered;
use crate::support::site_fixture::Scene;
use crate::support::visitor::{Page, Visitor, copies, rows, text};
use crate::web_ui::screens::{configuration, link};
use maildrop_command::site::Site;

on_two_engines!(
    what_is_owed_lost_and_failed_is_delivered_again_with_the_rights_that_are_documented,
    a_page_that_may_not_open_mailboxes_offers_the_command_line,
    with_the_rights_of_any_page_nothing_is_done_and_that_is_reported
);

/// An operator's link to the page, and the page of a role that [`create`] has made.
fn page(scene: &mut Scene, create: impl FnOnce(&mut Scene, &str)) -> (Page, String) {
    let role = format!("{}_w", scene.run);
    create(scene, &role);
    let site = Site::configured(configuration(scene, role)).unwrap();
    (Page::of(&site), link(scene, "operator"))
}

fn expunge(scene: &Scene, name: &str) {
    expunge_uid(scene, name, 1);
}

fn expunge_uid(scene: &Scene, name: &str, uid: u32) {
    let mut imap = scene.look(name);
    for command in ["SELECT INBOX", &format!("UID STORE {uid} +FLAGS (\\Deleted)"), "EXPUNGE"] {
        imap.run(command).unwrap();
    }
}

/// Picks all of a list, looks at the plan, and confirms it.
fn pick_and_confirm(anna: &Visitor<'_>, list: &str) -> String {
    let plan = anna.post("/again/plan", &copies(list).join("&"));
    anna.confirm(plan.shown())
}

fn what_is_owed_lost_and_failed_is_delivered_again_with_the_rights_that_are_documented(engine: Engine) {
    let (mut scene, message) = owed(engine, "[record]\nkeep_source = true\n");
    scene.member("scuba");
    let id = scene.message_id("owed");
    let holder = scene.hold(&id);
    scene.deliver_with("scuba", &["--lock-wait", "0s"], &message).deferred("4.3.0 ");
    drop(holder);
    // No copy is left: all comes from the source that is kept.
    expunge(&scene, "doug");
    let (page, link) = page(&mut scene, |scene, role| scene.database.create_page_with_mailboxes(role, "secret"));
    let anna = page.log_in(&link);

    let list = anna.get("/again");
    assert_eq!(rows(list.shown()), 1);
    let done_page_text = pick_and_confirm(&anna, &list.body);
    assert!(done_page_text.contains(&format!("DELIVERED to Sent of {}", scene.user("lisa"))), "{done_page_text}");
    let sent = scene.sent("lisa");
    assert_eq!(sent.iter().map(|copy| copy.content.as_slice()).collect::<Vec<_>>(), [as_delivered(message.as_bytes())]);

    let lost = anna.get(&format!("/again/lost?mailbox={}&since=1h", scene.user("doug")));
    assert!(text(lost.shown()).contains("most likely its owner has deleted or filed it"), "{}", lost.body);
    let confirmed_text = pick_and_confirm(&anna, &lost.body);
    assert!(confirmed_text.contains("DELIVERED to INBOX of"), "{confirmed_text}");
    assert_eq!(scene.inbox("doug").len(), 1);

    let failed = anna.get("/again/failed");
    assert_eq!(rows(failed.shown()), 1);
    let done_page = pick_and_confirm(&anna, &failed.body);
    assert!(
        done_page.contains("DELIVERED to INBOX of") && done_page.contains("for scuba@mail.axial.net"),
        "{done_page}"
    );
    assert_eq!(scene.inbox("scuba").len(), 1);

    // Sent once more, each finds its copy there.
    for list in [&list.body, &lost.body, &failed.body] {
        let confirmed = anna.confirm(list);
        assert!(confirmed.contains("ALREADY THERE"), "{confirmed}");
    }
    assert_eq!([scene.sent("lisa").len(), scene.inbox("doug").len(), scene.inbox("scuba").len()], [1; 3]);
    let log = text(anna.get("/log").shown());
    for has in ["finished owed", "restored", "delivered again", "anna , operator by web UI on"] {
        assert!(log.contains(has), "{has}: {log}");
    }
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    assert_eq!(scene.database.count("SELECT count(*) FROM copies WHERE state = 'owed'"), 0);
}

fn a_page_that_may_not_open_mailboxes_offers_the_command_line(engine: Engine) {
    let (mut scene, _) = owed(engine, "[record]\nkeep_source = true\n");
    let (may, link) = page(&mut scene, |scene, role| scene.database.create_page(role, "secret"));
    let anna = may.log_in(&link);
    let form = copies(anna.get("/again").shown()).join("&");
    let config = configuration(&scene, format!("{}_w", scene.run));
    let page = Page::of(&Site::without_mailboxes(config).unwrap());
    let get = |path: &str| page.ask("GET", path, &[("cookie", &anna.cookie)], "").shown().to_owned();
    let list = get("/again");
    assert!(rows(&list) == 1 && copies(&list).is_empty(), "{list}");
    assert!(text(&list).contains("maildrop_command replay --owed"), "{list}");
    let lost = text(&get("/again/lost?mailbox=doug&since=1h"));
    assert!(lost.contains("maildrop_command replay --restore --since 1h --mailbox doug"), "{lost}");
    let message = list.split("href=\"").find(|rest| rest.starts_with("/messages/")).unwrap().split('"').next().unwrap();
    let message = get(&message.replace("&amp;", "&"));
    let command = format!("maildrop_command replay --owed --mailbox {}/Sent", scene.user("lisa"));
    assert!(copies(&message).is_empty() && text(&message).contains(&command), "{message}");
    for path in ["/again/plan", "/again/start"] {
        let ours = ("sec-fetch-site", "same-origin");
        let answer = page.ask("POST", path, &[("cookie", &anna.cookie), ours], &form);
        assert_eq!(answer.status.as_u16(), 409, "{path}");
    }
    assert!(scene.sent("lisa").is_empty());
    // Doug has deleted it by mistake. The printed command brings back this one message.
    scene.deliver("doug", scene.message("other")).delivered();
    for uid in [1, 2] {
        expunge_uid(&scene, "doug", uid);
    }
    let shown = text(&message);
    let restore =
        shown.split("maildrop_command ").find(|words| words.starts_with("replay --restore")).expect("it is printed");
    // The footer follows the last command.
    let restore = restore.trim_end_matches("Times are UTC.");
    let restore: Vec<&str> =
        restore.split(' ').map(|word| word.trim_matches('\'')).filter(|word| !word.is_empty()).collect();
    let output = scene.subcommand(&restore);
    assert!(output.status.success(), "{restore:?}: {output:?}");
    let inbox = scene.inbox("doug");
    assert_eq!(inbox.iter().map(|copy| copy.uid).collect::<Vec<_>>(), [3], "{output:?}");
}

fn with_the_rights_of_any_page_nothing_is_done_and_that_is_reported(engine: Engine) {
    let (mut scene, _) = owed(engine, "");
    let (page, link) = page(&mut scene, |scene, role| scene.database.create_page(role, "secret"));
    let anna = page.log_in(&link);
    let confirmed = anna.confirm(anna.get("/again").shown());
    assert!(confirmed.contains("NOT DELIVERED to Sent of") && confirmed.contains("denied"), "{confirmed}");
    assert!(scene.sent("lisa").is_empty());
    assert_eq!(scene.database.count("SELECT count(*) FROM copies WHERE state = 'owed'"), 1);
}
