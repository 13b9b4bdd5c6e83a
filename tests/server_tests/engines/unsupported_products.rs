//! Servers that say when they greet us that they are another product, whose locks are others, or none. They are not
//! available here: a wire puts the words in a server's mouth.

use crate::support::check_report::Checked;
use crate::support::database::Engine;
use crate::support::site_fixture::Scene;
use crate::support::wire::{Fate, Speaker, Wire};

/// A wire to this server, on which it says `that` where it begins to say `this`.
fn that_says(engine: Engine, this: &'static str, that: &'static str) -> Wire {
    Wire::to(engine.address(), move |speaker, piece| {
        let begins = |place: &usize| speaker == Speaker::Server && piece[*place..].starts_with(this.as_bytes());
        let places: Vec<usize> = (0..piece.len()).filter(begins).collect();
        for place in places {
            piece[place..place + that.len()].copy_from_slice(that.as_bytes());
        }
        Fate::Pass
    })
}

fn nothing_is_delivered(engine: Engine, this: &'static str, that: &'static str, product: &str) {
    let mut scene = Scene::with(engine, &["doug"]);
    scene.deliver("doug", scene.message("itself")).delivered();
    let wire = that_says(engine, this, that);
    let as_it_was = scene.settings.database.clone();
    scene.configure(|settings| settings.database = ("127.0.0.1".into(), wire.address.port()));
    scene.deliver("doug", scene.message("x")).deferred("4.3.5 the database is not set up for deliveries");
    let expected = format!("the server is {product}, and whether its locks exclude");
    assert!(scene.log().contains(&expected), "{}", scene.log());
    let checked = Checked::of(&scene);
    let [("bad", found)] = checked.on("database")[..] else { panic!("{:?}", checked.on("database")) };
    assert!(found.contains(&expected), "{found}");
    assert!(checked.fix(found).contains("docs/failover-reference.md, \"Unsupported databases\""));
    assert_eq!(checked.exit, Some(69));
    let migrated = scene.subcommand(&["migrate"]);
    assert!(!migrated.status.success(), "{migrated:?}");
    // Among others it is passed over.
    let (host, port) = &as_it_was;
    let hosts = format!("hosts = [\"{}\", \"{host}:{port}\"]\nfailover_timeout = \"0s\"\n", wire.address);
    scene.configure(|settings| settings.database_more = hosts);
    scene.deliver("doug", scene.message("x")).delivered();
    assert_eq!(scene.inbox("doug").len(), 2);
}

#[test]
fn nothing_is_delivered_on_yugabytedb() {
    nothing_is_delivered(Engine::Postgres17, "server_version\x0017", "server_version\x0015-YB-", "YugabyteDB");
}

#[test]
fn nothing_is_delivered_on_redshift() {
    nothing_is_delivered(Engine::Postgres17, "server_version\x0017", "server_version\x008.0.2", "Amazon Redshift");
}

#[test]
fn nothing_is_delivered_on_tidb() {
    nothing_is_delivered(Engine::Mariadb118, "-MariaDB-", "-TiDB-v8-", "TiDB");
}

#[test]
fn nothing_is_delivered_on_vitess() {
    nothing_is_delivered(Engine::Mariadb118, "-MariaDB-", "-Vitess--", "Vitess");
}
