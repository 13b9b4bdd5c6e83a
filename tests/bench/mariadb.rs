//! A database of its own on MariaDB, beside the site's on PostgreSQL.

use crate::site::{Site, program};
use crate::support::database::{ADMINISTRATOR, Database, Engine};
use std::path::PathBuf;
use std::process::Command;

const PASSWORD: &str = "deliver-secret";

pub struct Mariadb {
    database: Database,
    /// For deliveries.
    pub configuration: PathBuf,
}

impl Mariadb {
    pub fn set_up(site: &Site) -> Self {
        let name = format!("maildrop_bench_{}", std::process::id());
        let mut database = Database::create(Engine::Mariadb118, &name);
        let administrator = configuration(site, &name, "mariadb-administrator", ADMINISTRATOR);
        let migrated = Command::new(program()).arg("migrate").arg("--config").arg(administrator).output().unwrap();
        assert!(migrated.status.success(), "{migrated:?}");
        database.create_role_of_grants_file(&name, PASSWORD);
        let configuration = configuration(site, &name, "mariadb", (&name, PASSWORD));
        Self { database, configuration }
    }

    /// As [`Site::add_users`].
    pub fn add_users(&mut self, users: &[String]) {
        let rows: Vec<String> = users.iter().map(|user| format!("('{user}@mail.example', '{user}')")).collect();
        self.database.execute(&format!("INSERT INTO addresses (address, imap_user) VALUES {}", rows.join(", ")));
    }
}

fn configuration(site: &Site, database: &str, name: &str, (user, password): (&str, &str)) -> PathBuf {
    let (imap_host, imap_port) = &site.servers.imap;
    let (host, port) = Engine::Mariadb118.address();
    let password = site.write(&format!("{name}-password"), password);
    let server = format!(
        "[database]\nengine = \"mysql\"\nhost = \"{host}\"\nport = {port}\ndatabase = \"{database}\"\nuser = \"{user}\"\n\
         password_file = \"{0}\"\nroles.owner = {{ user = \"{user}\", password_file = \"{0}\" }}\ntls = \"off\"\n",
        password.display()
    );
    site.write(&format!("{name}.toml"), &(server + &site.beside_the_database(imap_host, *imap_port, "none", "")))
}
