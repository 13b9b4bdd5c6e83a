//! What a server says of itself, where we rely on it: whether it takes writes, and how far its history reaches.

use crate::fixtures::primary_and_standby::Pair;
use crate::support::database::ADMINISTRATOR;
use crate::support::own_server::OwnServer;
use crate::support::postgres::{client, deadline, on_each_postgres, tcp};
use maildrop_command::base::secret::Secret;
use maildrop_command::database::{Limits, PostgresDatabase, Server, Session, Tls};

on_each_postgres!(the_log_s_position_has_the_new_timeline_as_soon_as_writes_are_taken);

/// `pg_control_checkpoint()` has it once a checkpoint was made. A role that owns nothing may ask.
fn the_log_s_position_has_the_new_timeline_as_soon_as_writes_are_taken(image: &str) {
    const REACH: &str = "SELECT pg_walfile_name(pg_current_wal_insert_lsn()) WHERE NOT pg_is_in_recovery()";
    const ORIGIN: &str = "SELECT system_identifier::text FROM pg_control_system()";
    let pair = Pair::start(image);
    let (mut primary, mut standby) = (Pair::session(&pair.primary), Pair::session(&pair.standby));
    primary.execute("CREATE ROLE nobody_s; SET ROLE nobody_s");
    assert!(primary.texts(REACH)[0].starts_with("00000001"));
    assert_eq!(primary.texts(ORIGIN), standby.texts(ORIGIN));
    assert!(standby.texts(REACH).is_empty());
    assert!(greets_as_a_standby(&pair.standby));
    assert!(!greets_as_a_standby(&pair.primary));
    // Asked again and again by a session that was there before.
    standby.execute("SELECT pg_promote(false)");
    let shown = std::iter::repeat_with(|| standby.texts(REACH)).find(|texts| !texts.is_empty());
    assert!(shown.unwrap()[0].starts_with("00000002"));
    assert_eq!(primary.texts(ORIGIN), standby.texts(ORIGIN));
    assert!(primary.texts(REACH)[0].starts_with("00000001"), "the former one stays where it was");
    assert!(!greets_as_a_standby(&pair.standby));
}

/// What the program makes of it.
fn greets_as_a_standby(server: &OwnServer) -> bool {
    let (host, port) = server.address();
    let server = Server {
        address: tcp(&host, port),
        database: "postgres".into(),
        user: ADMINISTRATOR.0.into(),
        password: Some(Secret::new(ADMINISTRATOR.1.into())),
        tls: Tls::Off,
        limits: Limits::default(),
        timelines: None,
    };
    let mut database = PostgresDatabase::connect(&server, &client("X"), deadline()).unwrap();
    let shown = database.said_read_only();
    assert_eq!(database.is_read_only().unwrap(), shown);
    assert_eq!(database.round_trips(), 1, "it has said so without being asked");
    shown
}
