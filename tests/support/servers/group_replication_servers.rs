//! MySQL Group Replication: three members, of which one takes writes.

use crate::support::database::{Connection, Engine};
use crate::support::own_server::{Network, OwnServer};
use crate::support::program::wait_until;
use crate::support::site_fixture::Scene;
use std::thread;

const NAME: &str = "7b2f0f52-6a5c-4c27-9d4e-0f1f3b7a9c11";
const MEMBERS: usize = 3;

pub struct Group {
    /// The first is the primary, until another takes over.
    pub members: Vec<OwnServer>,
    /// By which the members reach each other; mail hosts have another way to each of them.
    network: Network,
    addresses: Vec<String>,
}

impl Group {
    pub fn start() -> Self {
        let starting = (0..MEMBERS).map(|number| thread::spawn(move || OwnServer::member_of_a_group(number, NAME)));
        let starting: Vec<_> = starting.collect();
        let members: Vec<OwnServer> = starting.into_iter().map(|member| member.join().unwrap()).collect();
        let network = Network::beside(&members[0]);
        let addresses: Vec<String> = members.iter().map(|member| network.connect(member)).collect();
        let group = Self { members, network, addresses };
        let seeds: Vec<String> = group.addresses.iter().map(|ip| format!("{ip}:33061")).collect();
        for (member, address) in group.members.iter().zip(&seeds) {
            let mut session = Self::session(member);
            for statement in [
                // What each did by itself when it was made is no part of the group's history.
                "RESET BINARY LOGS AND GTIDS".to_owned(),
                "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'tester', SOURCE_PASSWORD = 'tester-secret' \
                 FOR CHANNEL 'group_replication_recovery'"
                    .to_owned(),
                "SET GLOBAL group_replication_recovery_get_public_key = ON".to_owned(),
                format!("SET GLOBAL group_replication_local_address = '{address}'"),
                format!("SET GLOBAL group_replication_group_seeds = '{}'", seeds.join(",")),
                // A member that is silent for five seconds is out.
                "SET GLOBAL group_replication_member_expel_timeout = 0".to_owned(),
                format!("SET GLOBAL group_replication_bootstrap_group = {}", u8::from(address == &seeds[0])),
                "START GROUP_REPLICATION".to_owned(),
            ] {
                session.execute(&statement);
            }
            session.execute("SET GLOBAL group_replication_bootstrap_group = OFF");
        }
        wait_until("all members are online", || group.online(0) == MEMBERS);
        group
    }

    /// An administrator's session with a member.
    pub fn session(member: &OwnServer) -> Connection {
        Connection::open_at(Engine::Mysql9, &member.address(), None)
    }

    /// How many members this one sees online.
    pub fn online(&self, member: usize) -> usize {
        let ask = "SELECT MEMBER_ID FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'";
        Self::session(&self.members[member]).texts(ask).len()
    }

    /// Cuts a member off the others, and off nobody else.
    pub fn cut_off(&self, member: usize) {
        self.network.disconnect(&self.members[member]);
    }

    /// Puts it back.
    pub fn connect(&self, member: usize) {
        self.network.connect_at(&self.members[member], &self.addresses[member]);
    }

    /// Which of the others takes writes, once one does.
    pub fn next_primary(&self) -> &OwnServer {
        let others = &self.members[1..];
        let takes_writes =
            |member: &&OwnServer| Self::session(member).texts("SELECT CAST(@@GLOBAL.super_read_only AS CHAR)") == ["0"];
        wait_until("another takes writes", || others.iter().any(|member| takes_writes(&member)));
        others.iter().find(takes_writes).unwrap()
    }

    /// A site whose database is the group's.
    pub fn site(&self) -> Scene {
        let mut scene = Scene::with_database_on(Engine::Mysql9, &self.members[0]);
        for name in ["doug", "scuba", "lisa"] {
            scene.member(name);
        }
        // The first delivery of all writes down whom the mailbox store lets in.
        scene.deliver("doug", scene.message("first")).delivered();
        scene
    }

    /// Boots the first member, which was killed: it takes writes, and is not in the group.
    pub fn boot_the_first(&self) -> &OwnServer {
        self.members[0].start();
        &self.members[0]
    }

    /// Makes the first member, which was killed, an ordinary server, so that the site can be removed from it.
    pub fn leave_the_first_alone(&self, scene: &mut Scene) {
        self.boot_the_first();
        scene.database.connect_again();
    }
}
