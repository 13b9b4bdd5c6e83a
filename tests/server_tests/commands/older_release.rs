//! A host that still has the program of an earlier release, beside hosts that have this one: the database is migrated by this one. Which
//! earlier program, MAILDROP_TEST_OLD says (tests/build_previous_release builds it).

use crate::support::database::Engine;
use crate::support::program::{Outcome, Running, feed};
use crate::support::run::note;
use crate::support::site_fixture::Scene;
use std::process::Command;

on_each_engine!(an_older_program_beside_this_one_loses_nothing_and_doubles_nothing);

const MESSAGES: usize = 6;
/// Each program's tries at what was deferred, in turns.
const TRIES: usize = 4;

/// Each message is for both; lisa writes it, and lives here.
const RECIPIENTS: [&str; 2] = ["doug", "scuba"];

/// The two programs at one site.
struct Both<'a> {
    scene: &'a Scene,
    old: String,
    delivered_by_old: usize,
    deferred_by_old: usize,
}

impl Both<'_> {
    fn command(&self, by_old: bool, recipient: &str) -> Command {
        let this = self.scene.command(recipient, &[]);
        if !by_old {
            return this;
        }
        let mut command = Command::new(&self.old);
        command.args(this.get_args()).env_clear();
        command
    }

    /// Whether it was delivered. The older program may defer, but nothing else.
    fn is_delivered(&mut self, by_old: bool, outcome: &Outcome) -> bool {
        let delivered = outcome.exit == Some(0);
        assert!(delivered || outcome.exit == Some(75), "{outcome:?}, by the older program: {by_old}");
        if by_old {
            *(if delivered { &mut self.delivered_by_old } else { &mut self.deferred_by_old }) += 1;
        }
        delivered
    }

    fn deliver(&mut self, by_old: bool, recipient: &str, message: &str) -> bool {
        let outcome = feed(self.command(by_old, recipient), message.as_bytes());
        self.is_delivered(by_old, &outcome)
    }

    /// As Postfix does, until one of them has delivered.
    fn until_delivered(&mut self, recipient: &str, message: &str, mut by_old: bool) {
        for _ in 0..2 * TRIES {
            if self.deliver(by_old, recipient, message) {
                return;
            }
            by_old = !by_old;
        }
        panic!("{recipient}: deferred again and again: {}", self.scene.log());
    }
}

fn an_older_program_beside_this_one_loses_nothing_and_doubles_nothing(engine: Engine) {
    let Some(old) = std::env::var("MAILDROP_TEST_OLD").ok().filter(|old| !old.is_empty()) else {
        return note(&format!("{engine:?}, an older program: not run, for there is no release yet\n"));
    };
    let mut scene = Scene::bare(engine);
    // As it was before the upgrade.
    let migrated = Command::new(&old).args(["migrate", "--config", &scene.path("config.toml")]).output().unwrap();
    assert!(migrated.status.success(), "{migrated:?}");
    for name in RECIPIENTS.into_iter().chain(["lisa"]) {
        scene.member(name);
    }
    let mut both = Both { scene: &scene, old, delivered_by_old: 0, deferred_by_old: 0 };
    let messages: Vec<String> = (0..MESSAGES).map(|number| scene.message(&format!("m{number}"))).collect();
    assert!(both.deliver(true, RECIPIENTS[0], &messages[0]), "{}", scene.log());
    let migrated = scene.subcommand(&["migrate"]);
    assert!(migrated.status.success(), "{migrated:?}");
    (both.delivered_by_old, both.deferred_by_old) = (0, 0);
    let (in_turns, at_once) = messages.split_at(MESSAGES / 2);
    // In turns: each recipient's twice, by the one and then by the other; the author's copy is owed by all four.
    for (number, message) in in_turns.iter().enumerate() {
        for recipient in RECIPIENTS {
            let old_is_first = number % 2 == 0;
            let by_the_first = both.deliver(old_is_first, recipient, message);
            let by_the_second = both.deliver(!old_is_first, recipient, message);
            assert!(by_the_first || by_the_second, "this program delivers: {}", scene.log());
        }
    }
    // At once: the same recipient by both programs.
    for message in at_once {
        let started = [true, false].map(|by_old| {
            RECIPIENTS.map(|to| (by_old, to, Running::start(both.command(by_old, to), message.as_bytes())))
        });
        for (by_old, recipient, delivery) in started.into_iter().flatten() {
            if !both.is_delivered(by_old, &delivery.end()) {
                both.until_delivered(recipient, message, !by_old);
            }
        }
    }
    for (mailbox, name) in [("INBOX", RECIPIENTS[0]), ("INBOX", RECIPIENTS[1]), ("Sent", "lisa")] {
        let mut there: Vec<String> = scene.mailbox(name, mailbox).iter().map(|copy| copy.field("Message-ID")).collect();
        there.sort();
        let ids: Vec<String> = (0..MESSAGES).map(|number| scene.message_id(&format!("m{number}"))).collect();
        assert_eq!(there, ids, "{name}/{mailbox}");
    }
    let Both { delivered_by_old, deferred_by_old, .. } = both;
    assert_eq!(scene.database.count("SELECT count(*) FROM attempts WHERE ended_at IS NULL"), 0);
    note(&format!(
        "{engine:?}, an older program: {delivered_by_old} times delivered, {deferred_by_old} times deferred\n"
    ));
}
