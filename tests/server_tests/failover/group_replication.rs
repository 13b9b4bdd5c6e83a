//! MySQL Group Replication, three members with a single primary, which dies or is cut off among deliveries.

use crate::failover::choice_of_server::check;
use crate::fixtures::delivery_storm::{Storm, hurry};
use crate::fixtures::group_replication_servers::Group;
use crate::fixtures::primary_and_standby::{go_to, hosts};
use crate::support::check_report::Checked;
use crate::support::database::{ADMINISTRATOR, Connection, Engine};
use crate::support::own_server::OwnServer;
use crate::support::program::{Running, feed, program, wait_until};
use crate::support::site_fixture::Scene;
use crate::support_mysql::client;
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::base::secret::Secret;
use maildrop_command::database::{
    DatabaseError, DatabaseFailure, KnownTimelines, Limits, MysqlDatabase, Server, Session as _, Tls,
};
use std::sync::Arc;
use std::time::Duration;

const MESSAGES: usize = 24;

/// A session with the database on this member.
fn ledger(member: &OwnServer, scene: &Scene) -> Connection {
    Connection::open_at(Engine::Mysql9, &member.address(), Some(&scene.database.name))
}

#[test]
fn a_primary_of_a_group_that_dies_among_deliveries_loses_nothing_and_doubles_nothing() {
    let group = Group::start();
    let mut scene = group.site();
    let gate = hurry(&mut scene);
    let all: Vec<&OwnServer> = group.members.iter().collect();
    go_to(&mut scene, &all, "durability = \"replicated\"\n");
    what_check_says(&group, &scene);

    let storm = Storm::of(&scene, MESSAGES);
    storm.deliver(|| {
        storm.stop_some(&gate, MESSAGES / 3);
        group.members[0].kill();
        gate.open();
    });
    storm.each_is_there_once(&mut ledger(group.next_primary(), &scene));
    group.leave_the_first_alone(&mut scene);
}

/// It says beforehand what would go wrong: a new primary that may be read before it has applied what was recorded.
fn what_check_says(group: &Group, scene: &Scene) {
    let found = check(scene);
    assert!(found.contains("a commit waits for the majority of its group"), "{found}");
    let fix = "may be read before it has applied what was recorded";
    assert!(!found.contains(fix), "{found}");
    let mut session = Group::session(&group.members[0]);
    let as_it_was = session.texts("SELECT @@GLOBAL.group_replication_consistency").remove(0);
    session.execute("SET GLOBAL group_replication_consistency = 'EVENTUAL'");
    let found = check(scene);
    assert!(found.contains(fix), "{found}");
    session.execute(&format!("SET GLOBAL group_replication_consistency = '{as_it_was}'"));
}

#[test]
fn a_primary_of_a_group_that_is_cut_off_among_deliveries_loses_nothing_and_doubles_nothing() {
    let group = Group::start();
    let mut scene = group.site();
    let gate = hurry(&mut scene);
    let [first, second, third] = &group.members[..] else { panic!("three members") };
    // One mail host begins with the member that will be cut off, another one with the others.
    let one = scene.other_configuration("one.toml", |settings| {
        settings.database_more = hosts(&[first, second, third], "");
    });
    let another = scene.other_configuration("another.toml", |settings| {
        settings.database_more = hosts(&[second, third, first], "");
    });
    let only = scene.other_configuration("minority.toml", |settings| {
        settings.database_more = hosts(&[first], "");
        settings.more.push_str("[routing]\nunknown_recipient = \"reject\"\n");
    });
    let command = a_command_under_a_lock(&only);
    let storm = Storm::by(&scene, MESSAGES, vec![one, another]);
    storm.deliver(|| {
        storm.stop_some(&gate, MESSAGES / 3);
        group.cut_off(0);
        gate.open();
        let new = group.next_primary();
        in_the_minority(&group, &scene, &only, command);
        who_asks_the_others(&group, &scene, new);
        who_has_met_the_new_one(&group, &scene, new);
        group.connect(0);
        // The others had it leave: what it was asked to commit alone is undone.
        wait_until("it takes no writes any more", || {
            Group::session(first).texts("SELECT CAST(@@GLOBAL.super_read_only AS CHAR)") == ["1"]
        });
    });
    storm.each_is_there_once(&mut ledger(group.next_primary(), &scene));
    first.kill();
    group.leave_the_first_alone(&mut scene);
}

/// A command that runs for as long as its lock is held.
fn a_command_under_a_lock(config: &str) -> Running {
    let begun = format!("{config}.begun");
    let script = format!("echo begun; : >{begun}; exec sleep 3600");
    let script = ["--", "sh", "-c", &script];
    let exec = ["lock", "exec", "--config", config, "--grace", "1s", "nightly"];
    let command = Running::start(program(&[&exec[..], &script].concat()), b"");
    wait_until("it runs", || std::fs::exists(&begun).unwrap());
    command
}

/// The member that was cut off gives locks, and says that it takes writes; what is delivered there is deferred, nobody is refused, and
/// `check` says why. A command that has its lock there is ended: the new primary gives the same lock to others.
fn in_the_minority(group: &Group, scene: &Scene, only: &str, mut command: Running) {
    let first = &group.members[0];
    let mut session = Group::session(first);
    // On a busy machine the others may know before it does.
    wait_until("it sees nobody else", || group.online(0) == 1);
    assert_eq!(session.texts("SELECT CAST(GET_LOCK('a lock of the minority', 0) AS CHAR)"), ["1"]);
    assert_eq!(session.texts("SELECT CAST(@@GLOBAL.super_read_only AS CHAR)"), ["0"]);
    let message = scene.message("in-the-minority");
    let to = |recipient| Running::start(scene.command_by(only, recipient, &[]), message.as_bytes());
    // A refusal is committed, too, before Postfix hears of it.
    let [doug, stranger] = ["doug", "stranger"].map(to);
    let checked = Checked::by(only);
    let in_vain = ("bad", "a commit waits for the majority of its group, and there is none");
    assert_eq!((checked.on("replication"), checked.exit), (vec![in_vain], Some(69)));
    wait_until("the command has ended", || command.has_ended());
    let (status, (stdout, stderr)) = (command.status(), command.outputs());
    assert_eq!((status.code(), stdout.as_str()), (Some(69), "begun\n"), "{stderr}");
    assert!(stderr.contains("nightly: the lock was lost while the command ran"), "{stderr}");
    for delivery in [doug, stranger] {
        delivery.end().deferred("4.");
    }
}

/// A process without memory learns from the member itself that it reaches no majority, and asks the others.
fn who_asks_the_others(group: &Group, scene: &Scene, new: &OwnServer) {
    let all: Vec<&OwnServer> = group.members.iter().collect();
    let config = in_no_hurry(scene, &hosts(&all, "failover_timeout = \"0s\"\n"));
    feed(scene.command_by(&config, "doug", &[]), scene.message("asks").as_bytes()).delivered();
    let recorded = format!("SELECT message_id FROM messages WHERE message_id = '{}'", scene.message_id("asks"));
    assert_eq!(ledger(new, scene).texts(&recorded).len(), 1);
}

fn in_no_hurry(scene: &Scene, database: &str) -> String {
    scene.other_configuration("in-no-hurry.toml", |settings| {
        settings.database_more = database.to_owned();
        (settings.imap_more, settings.more) = (String::new(), String::new());
    })
}

/// `group_replication_unreachable_majority_timeout`: the member itself ends what waits in vain, and takes no writes from then on.
#[test]
fn a_primary_that_leaves_its_group_when_it_is_cut_off_is_passed_over() {
    let group = Group::start();
    let mut scene = group.site();
    let [first, second, third] = &group.members[..] else { panic!("three members") };
    Group::session(first).execute("SET GLOBAL group_replication_unreachable_majority_timeout = 5");
    go_to(&mut scene, &[first], "failover_timeout = \"0s\"\n");
    group.cut_off(0);
    let new = group.next_primary();
    let takes_no_writes = || Group::session(first).texts("SELECT CAST(@@GLOBAL.super_read_only AS CHAR)") == ["1"];
    wait_until("it takes no writes any more", takes_no_writes);
    scene.deliver("doug", scene.message("alone")).deferred("4.3.0 the database takes no writes");
    go_to(&mut scene, &[first, second, third], "failover_timeout = \"0s\"\n");
    scene.deliver("doug", scene.message("x")).delivered();
    let recorded = format!("SELECT message_id FROM messages WHERE message_id = '{}'", scene.message_id("x"));
    assert_eq!(ledger(new, &scene).texts(&recorded).len(), 1);
    assert!(scene.log().contains("this database server takes no writes"), "{}", scene.log());
    first.kill();
    group.leave_the_first_alone(&mut scene);
}

/// It boots, and does not join its group by itself: it takes writes, and nobody else has what is committed there.
#[test]
fn a_member_that_boots_and_is_not_in_its_group_is_passed_over() {
    let group = Group::start();
    let mut scene = group.site();
    group.members[0].kill();
    let new = group.next_primary();
    let first = group.boot_the_first();
    scene.database.connect_again();
    what_it_says_of_itself(first);

    let all: Vec<&OwnServer> = group.members.iter().collect();
    go_to(&mut scene, &all, "failover_timeout = \"0s\"\n");
    let on_the_new_one_alone = |scene: &mut Scene, id: &str| {
        let message = scene.message(id);
        scene.deliver("doug", message).delivered();
        let recorded = format!("SELECT message_id FROM messages WHERE message_id = '{}'", scene.message_id(id));
        assert_eq!(ledger(new, scene).texts(&recorded).len(), 1, "{id}");
        assert!(scene.database.texts(&recorded).is_empty(), "{id}");
    };
    on_the_new_one_alone(&mut scene, "out-of-it");
    assert!(scene.log().contains("it is not online in its group (OFFLINE)"), "{}", scene.log());
    let found = check(&scene);
    assert!(
        found.contains("it is not online in its group (OFFLINE)") && !found.contains("both take writes"),
        "{found}"
    );
    who_may_not_ask_for_members(first, &scene);
    who_opened_it_to_read(first, &scene);

    // Where it is the only one, too. It is an ordinary server once its options name no group.
    go_to(&mut scene, &[first], "failover_timeout = \"0s\"\n");
    scene.deliver("doug", scene.message("alone")).deferred("4.3.0 the database takes no writes");
    Group::session(first).execute("UNINSTALL PLUGIN group_replication");
    scene.deliver("doug", scene.message("alone")).delivered();
    assert_eq!(scene.inbox("doug").len(), 3);
}

/// A row of members, which says OFFLINE; and one of their figures, which names nobody.
fn what_it_says_of_itself(member: &OwnServer) {
    let mut session = Group::session(member);
    assert_eq!(session.texts("SELECT CAST(@@GLOBAL.read_only AS CHAR)"), ["0"]);
    let members =
        "SELECT CONCAT(MEMBER_ID = @@server_uuid, ' ', MEMBER_STATE) FROM performance_schema.replication_group_members";
    assert_eq!(session.texts(members), ["1 OFFLINE"]);
    let figures =
        "SELECT CONCAT('<', VIEW_ID, '> <', MEMBER_ID, '>') FROM performance_schema.replication_group_member_stats";
    assert_eq!(session.texts(figures), ["<> <>"]);
}

/// A role with the right to the figures alone learns it from them.
fn who_may_not_ask_for_members(member: &OwnServer, scene: &Scene) {
    let role = format!("f{}", &scene.run[scene.run.len() - 12..]);
    let mut session = Group::session(member);
    // Another configuration file names the same password file.
    session.execute(&format!("CREATE USER '{role}'@'%' IDENTIFIED BY '{}'", ADMINISTRATOR.1));
    session.execute(&format!("GRANT ALL ON `{}`.* TO '{role}'@'%'", scene.database.name));
    let grant = "GRANT SELECT ON performance_schema.replication_group_member_stats";
    session.execute(&format!("{grant} TO '{role}'@'%'"));
    let config = scene.other_configuration("figures.toml", |settings| {
        settings.database_more = hosts(&[member], "failover_timeout = \"0s\"\n");
        settings.role.clone_from(&role);
    });
    let shown = feed(scene.command_by(&config, "doug", &[]), scene.message("by-the-figures").as_bytes());
    shown.deferred("4.3.0 the database takes no writes");
    session.execute(&format!("DROP USER '{role}'@'%'"));
}

/// A session with a member, of a process that knows these timelines.
fn ask(member: &OwnServer, scene: &Scene, known: &Arc<KnownTimelines>) -> Result<MysqlDatabase, DatabaseError> {
    let server = Server {
        address: Endpoint::Tcp { host: member.address().0, port: member.address().1 },
        database: scene.database.name.clone(),
        user: ADMINISTRATOR.0.into(),
        password: Some(Secret::new(ADMINISTRATOR.1.into())),
        tls: Tls::Off,
        limits: Limits::default(),
        timelines: Some(known.clone()),
    };
    MysqlDatabase::connect(&server, &client(), Deadline::after(Duration::from_secs(60)))
}

/// It takes no writes while it looks for its group, and takes them again when it has not found it.
fn who_opened_it_to_read(member: &OwnServer, scene: &Scene) {
    let mut administrator = Group::session(member);
    administrator.execute("SET GLOBAL super_read_only = 1");
    let mut session = ask(member, scene, &Arc::default()).unwrap();
    assert!(session.said_read_only());
    administrator.execute("SET GLOBAL super_read_only = 0");
    administrator.execute("SET GLOBAL read_only = 0");
    for _ in 0..2 {
        assert!(session.is_read_only().unwrap() && session.said_read_only());
    }
}

/// A process that has met the new primary's view goes back to no member that was left behind, although that answers.
fn who_has_met_the_new_one(group: &Group, scene: &Scene, new: &OwnServer) {
    let known = Arc::default();
    assert!(!ask(new, scene, &known).unwrap().is_read_only().unwrap());
    let mut left_behind = ask(&group.members[0], scene, &known).unwrap();
    let error = left_behind.is_read_only().unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Behind, "{error}");
    let error = ask(&group.members[0], scene, &known).map(|_| ()).unwrap_err();
    assert_eq!(error.failure, DatabaseFailure::Behind, "it is asked before it is used: {error}");
}
