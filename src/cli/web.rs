//! `web`: who may look at the page.

use super::site_options::{LONGEST_ANSWER, SiteOptions, failed};
use super::{complain, json, say, table};
use crate::base::terminal::shell_word;
use crate::base::timestamp::told;
use crate::config::SESSION_IDLE;
use crate::ledger::web_sessions::{self, Lifetimes, WebRole};
use crate::operations::operations_log::CommandLine;
use crate::operations::web_logins;
use clap::{Args, Subcommand, ValueEnum};
use sysexits::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print a link that logs somebody in to the page, once, within ten minutes
    Login(LoginArguments),
    /// Who is logged in to the page now, or end one of these logins
    Sessions(SessionsArguments),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    /// Sees what became of messages, but not what is in them
    Viewer,
    /// Sees what is in them as well
    Reader,
    /// Delivers again as well
    Operator,
    /// Sees who is logged in as well, and logs others out
    Admin,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command web login --name anna --role viewer
  maildrop_command web login --embedded /tmp/maildrop-demo --name anna --role admin

Give the link to that person and to nobody else. The database has only a digest of it. It leads to web.public_url, or else to web.listen, \
of the configuration.

It needs the rights of sql/*/grants-operator.sql.

Exit status: 0, 64 for a mistake in the arguments, 69 if the database cannot be asked, 78 if the configuration cannot be read, or has no \
page in it.")]
pub(crate) struct LoginArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Who it is, as the log and others will see it
    #[arg(long, value_parser = web_logins::name)]
    name: String,
    /// What this person may do there
    #[arg(long, value_enum)]
    role: Role,
    /// Where browsers find the page of a directory
    #[arg(long, value_name = "URL", requires = "embedded", default_value = "http://127.0.0.1:8025")]
    url: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  maildrop_command web sessions
  maildrop_command web sessions --json | jq -r '.[] | select(.name == \"anna\") | .id'

Whose login is ended has to log in anew; a link for that is another one.

It needs the rights of sql/*/grants-operator.sql.

Exit status: 0, 66 if there is no such login, 69 if the database cannot be asked, 78 if the configuration cannot be read.")]
pub(crate) struct SessionsArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// End the login that the list names so
    #[arg(long, value_name = "ID")]
    end: Option<String>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, ExitCode> {
    match command {
        Command::Login(arguments) => login(arguments),
        Command::Sessions(arguments) => sessions(arguments),
    }
}

fn login(arguments: &LoginArguments) -> Result<ExitCode, ExitCode> {
    let (site, mut database) = arguments.site.open(LONGEST_ANSWER)?;
    let origin = match site.config() {
        Some(config) => config.web.origin().ok_or_else(|| {
            complain("the configuration has no page in it: web.listen is missing");
            ExitCode::Config
        })?,
        None => arguments.url.trim_end_matches('/').to_owned(),
    };
    let by = CommandLine::of(&site);
    let link = web_logins::link(database.as_mut(), by.actor(), &origin, &arguments.name, arguments.role.into());
    say(&link.map_err(|error| failed(&error))?);
    Ok(ExitCode::Ok)
}

fn sessions(arguments: &SessionsArguments) -> Result<ExitCode, ExitCode> {
    let (site, mut database) = arguments.site.open(LONGEST_ANSWER)?;
    if let Some(id) = &arguments.end {
        let by = CommandLine::of(&site);
        let ended = web_logins::end(database.as_mut(), by.actor(), id).map_err(|error| failed(&error))?;
        return if ended {
            if arguments.json {
                say(&json(&serde_json::json!({ "id": id })));
            } else {
                say(&format!("The login {id} is ended."));
            }
            Ok(ExitCode::Ok)
        } else {
            complain(&format!("there is no login {}: `maildrop_command web sessions` lists them", shell_word(id)));
            Err(ExitCode::NoInput)
        };
    }
    let found =
        web_sessions::sessions(database.as_mut(), Lifetimes::of(SESSION_IDLE)).map_err(|error| failed(&error))?;
    if arguments.json {
        say(&json(&found));
    } else if found.is_empty() {
        say("Nobody is logged in.");
    } else {
        let row = |one: &web_sessions::WebSession| {
            [one.id.clone(), one.name.clone(), one.role.as_str().to_owned(), told(one.began_at), told(one.seen_at)]
        };
        say(&table(["ID", "NAME", "ROLE", "SINCE", "LAST SEEN"], found.iter().map(row)));
    }
    Ok(ExitCode::Ok)
}

impl From<Role> for WebRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Viewer => Self::Viewer,
            Role::Reader => Self::Reader,
            Role::Operator => Self::Operator,
            Role::Admin => Self::Admin,
        }
    }
}
