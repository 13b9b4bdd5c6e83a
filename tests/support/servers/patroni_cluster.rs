//! Three nodes that agree by etcd which of them takes writes: Patroni, PostgreSQL 17, `synchronous_mode`.

use crate::support::container;
use crate::support::database::{Connection, Engine};
use crate::support::own_server::{Network, WHAT_IT_IS, claim, docker};
use crate::support::program::wait_for;
use serde_json::Value;
use std::fs::File;
use std::process::Command;
use std::time::Duration;

/// A machine that has much else to do takes its time for a copy of the database.
const LIMIT: Duration = Duration::from_secs(240);

/// What ends a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGKILL to all of its container: PostgreSQL, Patroni and etcd.
    Killed,
    /// SIGSTOP of its Patroni. Its PostgreSQL goes on and answers, while the others choose another leader.
    Hung,
    /// Off the network of the nodes, and of nobody else: mail hosts still reach it.
    CutOff,
    /// `patronictl switchover`.
    Switchover,
}

impl End {
    pub const ALL: [Self; 4] = [Self::Killed, Self::Hung, Self::CutOff, Self::Switchover];
}

/// The nodes. Dropped, they are removed with what they stored, unless the test failed; `tests/servers/down` removes
/// what is left.
pub struct Cluster {
    nodes: Vec<Node>,
    /// By which the nodes reach each other; mail hosts have another way to each of them. Dropped after its nodes.
    network: Network,
}

struct Node {
    container: String,
    /// For mail hosts.
    ip: String,
    /// For the other nodes.
    own: String,
    _claim: File,
}

impl Cluster {
    /// Three nodes, of which one leads, and another one is its synchronous standby.
    pub fn start() -> Self {
        let image = image();
        let original = container("POSTGRES17");
        let asked = docker(&["inspect", "--format", WHAT_IT_IS, &original]).unwrap();
        let words: Vec<&str> = asked.split_whitespace().collect();
        let [_, shared, its_ip, tls] = words[..] else { panic!("{original}: {asked}") };
        let (net, _) = its_ip.rsplit_once('.').expect("an address of IPv4");
        let prefix = format!("{}-patroni-{}", original.trim_end_matches("-postgres17"), std::process::id());
        let (network, subnet) = Network::named(format!("{prefix}-net"));
        let own: Vec<String> = (1..=3).map(|number| format!("{subnet}.1{number}")).collect();
        let nodes = own.iter().zip(1..).map(|(own, number)| {
            // No other server's of a test ends in these.
            let ip = format!("{net}.{}", 250 + number);
            let claim = claim(&ip).expect("one such run at a time");
            Node { container: format!("{prefix}-{number}"), ip, own: own.clone(), _claim: claim }
        });
        let cluster = Self { nodes: nodes.collect(), network };
        for (number, node) in (1..).zip(&cluster.nodes) {
            let names = format!("CERT_NAMES=DNS:localhost,IP:{},IP:127.0.0.1", node.ip);
            let (this, all) = (format!("NODE={number}"), format!("NODES={}", own.join(" ")));
            let tls = format!("{tls}:/tls:ro");
            let options = [
                ["--name", &node.container],
                ["--network", shared],
                ["--ip", &node.ip],
                ["--shm-size", "256m"],
                ["--env", &names],
                ["--env", "TLS_DIR=/tls"],
                ["--env", &this],
                ["--env", &all],
                ["--volume", &tls],
            ];
            docker(&[&["create", "--init"][..], &options.concat(), &[&image]].concat()).unwrap();
            cluster.connect(node);
            docker(&["start", &node.container]).unwrap();
        }
        cluster.wait_until_whole();
        cluster
    }

    /// The address of a node, as mail hosts call it.
    pub fn address(&self, node: usize) -> (String, u16) {
        (self.nodes[node].ip.clone(), Engine::Postgres17.port())
    }

    /// Those of all of them.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("{}:{}", node.ip, Engine::Postgres17.port())).collect()
    }

    /// Ends the leader; sends the commands for it, and does not wait for their outcome.
    pub fn end(&self, leader: usize, how: End) {
        let node = &self.nodes[leader];
        match how {
            End::Killed => drop(docker(&["kill", "--signal", "KILL", &node.container]).unwrap()),
            End::Hung => node.patroni("STOP"),
            End::CutOff => self.network.disconnect_container(&node.container),
            End::Switchover => {
                let this = format!("node{}", leader + 1);
                let switch = ["patronictl", "-c", CONFIG, "switchover", "maildrop", "--leader", &this, "--force"];
                docker(&[&["exec", "--detach", &node.container][..], &switch].concat()).unwrap();
            }
        }
    }

    /// Undoes it: from now on it may join as a standby.
    pub fn repair(&self, former: usize, how: End) {
        let node = &self.nodes[former];
        match how {
            End::Killed => drop(docker(&["start", &node.container]).unwrap()),
            End::Hung => node.patroni("CONT"),
            End::CutOff => self.connect(node),
            End::Switchover => {}
        }
    }

    /// Which node takes writes, but for this one, once one does.
    pub fn next_leader(&self, former: usize) -> usize {
        let mut next = None;
        wait_for("another one leads", LIMIT, || {
            std::thread::sleep(Duration::from_millis(200));
            let others = (0..self.nodes.len()).filter(|node| *node != former);
            next = others.into_iter().find(|node| self.takes_writes(*node));
            next.is_some()
        });
        next.unwrap()
    }

    fn takes_writes(&self, node: usize) -> bool {
        let session = Connection::try_open_at(Engine::Postgres17, &self.address(node), None);
        session.is_ok_and(|session| {
            let Connection::Postgres(mut client) = session else { return false };
            let row = client.query_one("SELECT NOT pg_is_in_recovery()", &[]);
            row.is_ok_and(|row| row.get(0))
        })
    }

    /// Waits until one leads, one is its synchronous standby, and the third one follows as well; which one leads.
    pub fn wait_until_whole(&self) -> usize {
        let mut leader = None;
        let mut last = String::new();
        let began = std::time::Instant::now();
        while leader.is_none() {
            assert!(began.elapsed() < LIMIT, "they do not come together: {last}");
            std::thread::sleep(Duration::from_millis(500));
            last = self.list(&["--format", "json"]);
            leader = leader_of_whole(&last);
        }
        leader.unwrap()
    }

    /// What `patronictl list` says, asked of any node that answers.
    pub fn list(&self, more: &[&str]) -> String {
        let list = ["patronictl", "-c", CONFIG, "list"];
        let mut received = String::new();
        for node in &self.nodes {
            match docker(&[&["exec", &node.container][..], &list, more].concat()) {
                Ok(answer) => return answer,
                Err(error) => received = error,
            }
        }
        received
    }

    fn connect(&self, node: &Node) {
        self.network.connect_container(&node.container, &node.own);
    }
}

impl Node {
    /// Sends a signal to Patroni alone.
    fn patroni(&self, signal: &str) {
        let kill = format!("kill -{signal} $(cat /srv/patroni.pid)");
        docker(&["exec", &self.container, "sh", "-ec", &kill]).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} and the others are left for you to look at", self.nodes[0].container);
            return;
        }
        for node in &self.nodes {
            let _ = docker(&["rm", "--force", "--volumes", &node.container]);
        }
    }
}

const CONFIG: &str = "/srv/patroni.yml";

/// The image, which is built if it is missing: nothing else needs it.
fn image() -> String {
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images/build");
    let output_text = Command::new(build).arg("patroni").output().expect("it can be run");
    assert!(output_text.status.success(), "{output_text:?}");
    let printed = String::from_utf8(output_text.stdout).unwrap();
    printed.split_whitespace().nth(1).unwrap_or_else(|| panic!("{printed}")).to_owned()
}

/// Which node leads, where all three are in their places.
fn leader_of_whole(list: &str) -> Option<usize> {
    let list: Value = serde_json::from_str(list).ok()?;
    let members = list.as_array()?;
    let of = |role: &str, state: &str| {
        let mut such = members.iter().filter(|member| member["Role"] == role && member["State"] == state);
        such.next()?["Member"].as_str()
    };
    of("Sync Standby", "streaming").and(of("Replica", "streaming"))?;
    of("Leader", "running")?.strip_prefix("node")?.parse::<usize>().ok()?.checked_sub(1)
}
