//! The one change of keys, on each engine: a ledger from before it.

use crate::support::database::Engine;
use crate::support::old_keys;
use crate::support::scene::Scene;

on_each_engine!(a_ledger_from_before_has_its_keys_changed_once, a_ledger_from_before_puts_all_mail_off);

/// By today's keys it would know nothing of what it has delivered.
fn a_ledger_from_before_puts_all_mail_off(engine: Engine) {
    let mut scene = Scene::empty(engine);
    let doug = scene.member("doug");
    scene.database.execute("DELETE FROM maildrop_migrations WHERE name = 'keys_by_day'");
    scene.deliver(&doug, scene.message("before")).deferred("4.3.5 ");
    assert!(scene.log().contains("run `maildrop_command migrate`"), "{}", scene.log());
    assert_eq!(scene.inbox("doug").len(), 0);
}

fn a_ledger_from_before_has_its_keys_changed_once(engine: Engine) {
    let scene = Scene::bare(engine);
    old_keys::are_changed_once(scene.open_database().as_mut());
}
