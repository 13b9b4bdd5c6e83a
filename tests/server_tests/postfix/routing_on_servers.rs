//! Which mailbox a message goes to, and who is its author.

use crate::support::database::Engine;
use crate::support::site_fixture::{LISA, Scene};

const PG: Engine = Engine::Postgres17;
/// An unknown address is refused.
const REJECT: &str = "[routing]\nunknown_recipient = \"reject\"\n";

on_two_engines!(
    the_table_of_addresses_leads_to_the_mailbox,
    while_nobody_is_known_nobody_is_refused,
    while_the_table_is_being_filled_nobody_need_be_refused,
    a_table_that_cannot_be_read_refuses_nobody,
    an_address_is_the_same_however_postfix_spells_it,
);

fn the_table_of_addresses_leads_to_the_mailbox(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa", "doug"]);
    scene.configure(|settings| settings.more = REJECT.into());
    // Everybody else there; and a mailbox other than INBOX.
    scene.database.add_address("@other.example", &scene.user("rest"));
    scene.database.add_address("scuba@other.example", &scene.user("scuba"));
    let table = "UPDATE addresses SET inbox = 'Team/Diving', sent = 'Gone' WHERE address = 'scuba@other.example'";
    scene.database.execute(table);

    for (recipient, name, mailbox) in [
        ("doug@mail.axial.net", "doug", "INBOX"),
        ("Doug@Mail.AXIAL.net", "doug", "INBOX"),
        ("doug+lists@mail.axial.net", "doug", "INBOX"),
        ("scuba@other.example", "scuba", "Team/Diving"),
        ("anybody@other.example", "rest", "INBOX"),
    ] {
        let before = scene.mailbox(name, mailbox).len();
        scene.deliver(recipient, scene.message(&recipient.replace('@', "."))).delivered();
        assert_eq!(scene.mailbox(name, mailbox).len(), before + 1, "{recipient}");
    }
    assert_eq!(scene.sent("lisa").len(), 5);

    // An author there has the Sent mailbox that the table names; a row for everybody makes nobody an author.
    let from = |address: &str| scene.message(&address.replace('@', ".at.")).replace(LISA, address);
    scene.deliver("doug", from("scuba@other.example")).delivered();
    assert_eq!(scene.mailbox("scuba", "Gone").len(), 1);
    let line = scene.deliver("doug", from("made-up@other.example"));
    assert!(!line.delivered().contains("Sent"), "{line:?}");
    assert_eq!(scene.sent("rest").len(), 0);

    let stranger = scene.deliver("stranger@mail.axial.net", scene.message("stranger"));
    assert_eq!(stranger.ended(67, "5.1.1 "), "no such recipient here");
    assert_eq!(scene.database.count("SELECT count(*) FROM messages WHERE message_id LIKE '<stranger%'"), 0);
}

/// As it stood at RCPT TO, or folded as pipe(8) hands it over: it is found, and nobody else is.
fn an_address_is_the_same_however_postfix_spells_it(engine: Engine) {
    let mut scene = Scene::with(engine, &["lisa"]);
    for (address, name) in [
        ("νίκοσ", "nikos"),
        ("gross", "gross"),
        ("\u{2bc}na", "na"),
        ("i\u{307}", "dotted"),
        ("i", "i"),
        ("jörg", "joerg"),
    ] {
        scene.database.add_address(&format!("{address}@mail.axial.net"), &scene.user(name));
    }
    for (name, spellings) in [
        ("nikos", &["νίκος", "ΝΊΚΟΣ", "νίκοσ", "Νίκος+lists"][..]),
        ("gross", &["groß", "gross", "GROẞ", "GROSS"]),
        ("na", &["ŉa", "\u{2bc}NA"]),
        ("dotted", &["İ", "i\u{307}"]),
        ("i", &["I", "i"]),
        ("joerg", &["JÖRG", "jörg"]),
    ] {
        for (number, spelling) in spellings.iter().enumerate() {
            let message = scene.message(&format!("{name}.{number}"));
            scene.deliver(&format!("{spelling}@mail.axial.net"), message).delivered();
        }
        assert_eq!(scene.inbox(name).len(), spellings.len(), "{name}");
    }
    scene.deliver("ı@mail.axial.net", scene.message("dotless")).deferred("4.1.1 ");
    // Who writes is found likewise.
    scene.deliver("i", scene.message("from").replace(LISA, "νίκος@mail.axial.net")).delivered();
    assert_eq!(scene.sent("nikos").len(), 1);
}

fn while_nobody_is_known_nobody_is_refused(engine: Engine) {
    let mut scene = Scene::empty(engine);
    scene.configure(|settings| settings.more = REJECT.into());
    let message = scene.message("early");
    scene.deliver("doug", &message).deferred("4.3.5 no recipient addresses are configured");
    scene.member("scuba");
    scene.deliver("doug", &message).ended(67, "5.1.1 ");
    scene.member("doug");
    scene.deliver("doug", &message).delivered();
}

fn while_the_table_is_being_filled_nobody_need_be_refused(engine: Engine) {
    let mut scene = Scene::with(engine, &["scuba"]);
    let message = scene.message("early");
    scene.deliver("doug", &message).deferred("4.1.1 no such recipient here; deferred by routing.unknown_recipient");
    scene.deliver("scuba", &message).delivered();
    scene.member("doug");
    scene.deliver("doug", &message).delivered();
    // The table is complete.
    scene.configure(|settings| settings.more = REJECT.into());
    scene.deliver("nobody", &message).ended(67, "5.1.1 ");
    assert_eq!((scene.inbox("doug").len(), scene.inbox("scuba").len()), (1, 1));
}

fn a_table_that_cannot_be_read_refuses_nobody(engine: Engine) {
    let mut scene = Scene::with(engine, &["doug"]);
    let role = format!("r{}", scene.run);
    scene.database.create_role_of_grants_file(&role, "only-for-this-test");
    scene.configure(|settings| {
        settings.role = role.clone();
        settings.database_password = "only-for-this-test".into();
    });
    // The rights of the file are enough, and one less is not.
    scene.deliver("doug", scene.message("one")).delivered();
    let whom = if engine.is_postgres() { role } else { format!("'{role}'@'%'") };
    scene.database.execute(&format!("REVOKE SELECT ON addresses FROM {whom}"));
    for recipient in ["doug", "nobody"] {
        scene.deliver(recipient, scene.message("two")).deferred("4.3.5 the database is not set up for deliveries");
    }
    assert_eq!(scene.inbox("doug").len(), 1);
}

#[test]
fn a_rule_for_a_domain_comes_after_the_table() {
    let mut scene = Scene::with(PG, &["doug"]);
    let run = scene.run.clone();
    scene.configure(|settings| {
        settings.more = format!(
            "{REJECT}recipient_delimiter = \"-\"\n\
             [[routing.domain]]\nname = \"mail.axial.net\"\nuser = \"{{local}}-rule-{run}\"\nsent = \"Outbox\"\n\
             [[routing.domain]]\nname = \"one.example\"\nuser = \"all-{run}\"\ninbox = \"Everything\"\n"
        );
    });
    scene.deliver("doug", scene.message("a")).delivered();
    scene.deliver("Scuba-lists@mail.axial.net", scene.message("b")).delivered();
    scene.deliver("a+b@one.example", scene.message("c")).delivered();
    scene.deliver("d@one.example", scene.message("c")).delivered();
    let count = |name: &str, mailbox: &str| scene.mailbox(name, mailbox).len();
    assert_eq!((count("doug", "INBOX"), count("doug-rule", "INBOX"), count("scuba-rule", "INBOX")), (1, 0, 1));
    assert_eq!(count("all", "Everything"), 1, "one message to two addresses of one mailbox");
    // By the rule Lisa lives here, too: one Sent copy for each message.
    assert_eq!(count("lisa-rule", "Outbox"), 3);
    // A rule answers for its whole domain, a stranger's is still unknown.
    scene.deliver("doug@nowhere.example", scene.message("d")).ended(67, "5.1.1 ");
}

#[test]
fn two_aliases_of_one_mailbox_are_one_copy() {
    let mut scene = Scene::with(PG, &["doug"]);
    scene.database.add_address("d.smith@mail.axial.net", &scene.user("doug"));
    let message = scene.message("aliases");
    assert!(scene.deliver("doug", &message).delivered().starts_with("INBOX appended"));
    for recipient in ["d.smith", "doug+news", "doug"] {
        assert_eq!(scene.deliver(recipient, &message).delivered(), "INBOX already there");
    }
    assert_eq!(scene.inbox("doug").len(), 1);
}

/// A forged From must not write into a member's Sent.
#[test]
fn only_an_author_who_is_vouched_for_gets_a_sent_copy() {
    let mut scene = Scene::with(PG, &["lisa", "doug"]);
    scene.configure(|settings| {
        settings.more = "[sent]\nauthor_check = \"authenticated\"\nauthserv_id = \"mx.axial.net\"\n".into();
    });
    let results = |id: &str, results: &str| format!("Authentication-Results: {results}\n{}", scene.message(id));
    let pass = "dmarc=pass header.from=mail.axial.net";
    let low =
        format!("mx.axial.net; dmarc=fail header.from=mail.axial.net\nAuthentication-Results: mx.axial.net; {pass}");
    for (id, message, arguments, vouched) in [
        ("bare", scene.message("bare"), &[][..], false),
        ("sasl", scene.message("sasl"), &["--sasl-username", "lisa"], true),
        ("empty-sasl", scene.message("empty-sasl"), &["--sasl-username", ""], false),
        ("ours", results("ours", &format!("mx.axial.net; spf=none; {pass}")), &[], true),
        ("fail", results("fail", "mx.axial.net; dmarc=fail header.from=mail.axial.net"), &[], false),
        ("foreign", results("foreign", &format!("mx.evil.example; {pass}")), &[], false),
        ("like-ours", results("like-ours", &format!("mx.axial.net.evil.example; {pass}")), &[], false),
        ("other-from", results("other-from", "mx.axial.net; dmarc=pass header.from=evil.example"), &[], false),
        ("lower", results("lower", &low), &[], false),
        ("in-comment", results("in-comment", &format!("mx.axial.net; none (x; {pass})")), &[], false),
    ] {
        let before = scene.sent("lisa").len();
        let outcome = scene.deliver_with("doug", arguments, message);
        assert_eq!(outcome.delivered().contains("Sent"), vouched, "{id}: {outcome:?}");
        assert_eq!(scene.sent("lisa").len() - before, usize::from(vouched), "{id}");
    }
    assert_eq!(scene.inbox("doug").len(), 10);
    // Two in From: nobody's.
    let two = scene.message("two").replace("From: ", "From: boss@mail.axial.net, ");
    let outcome = scene.deliver_with("doug", &["--sasl-username", "lisa"], two);
    assert!(!outcome.delivered().contains("Sent"), "{outcome:?}");
}

/// The author stands in From, whatever the envelope says.
#[test]
fn the_sender_is_who_from_says() {
    let scene = Scene::with(PG, &["lisa", "scuba", "doug"]);
    scene.deliver_with("doug", &["--sender", "scuba@mail.axial.net"], scene.message("a")).delivered();
    scene.deliver_with("doug", &["--sender", ""], scene.message("b")).delivered();
    let odd = scene
        .message("c")
        .replace("Lisa <", "=?utf-8?q?Lis=C3=A4?= (\"(\\\") <")
        .replace(LISA, "LISA+x@mail.Axial.net");
    scene.deliver("doug", odd).delivered();
    assert_eq!((scene.sent("lisa").len(), scene.sent("scuba").len()), (3, 0));
    let from_nobody = scene.message("d").replace("From: ", "X-From: ");
    assert!(!scene.deliver("doug", from_nobody).delivered().contains("Sent"));
}

/// By a rule for a domain everybody there lives here, also whom the mailbox store does not know: whatever somebody writes
/// into From must not keep a message in the queue for a day.
#[test]
fn an_author_whom_the_mailbox_store_does_not_know_holds_nothing_up() {
    let mut scene = Scene::with(PG, &["doug"]);
    scene.configure(|settings| {
        settings.more = "[[routing.domain]]\nname = \"one.example\"\nuser = \"{local}\"\n".into();
    });
    // Dovecot takes no such name for a user.
    let message = scene.message("nobody").replace(LISA, "no!body@one.example");
    let outcome = scene.deliver("doug", &message);
    assert_eq!(outcome.delivered(), "INBOX appended (uid 1), Sent owed");
}
