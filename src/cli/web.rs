//! `web`: who may use the web UI.

use super::site_options::{QueryOptions, SiteOptions};
use super::{Columns, Ended, Failure, fail, help, list, print, print_line};
use crate::base::terminal::shell_word;
use crate::base::timestamp::time_text;
use crate::config::SESSION_IDLE;
use crate::ledger::web_sessions::{self, Lifetimes, WebRole, WebSession};
use crate::operations::web_logins;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use sysexits::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print a link that logs somebody in to the web UI, once, within ten minutes
    #[command(after_help = help("web login"))]
    Login(LoginArguments),
    /// List who is logged in to the web UI, or end a session
    #[command(after_help = help("web sessions"))]
    Sessions(SessionsArguments),
}

#[derive(Debug, Args)]
pub(crate) struct LoginArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Who it is, as the log and others will see it
    #[arg(long, value_parser = web_logins::name)]
    name: String,
    /// What this person may do there. A viewer sees what became of messages, but not their content; a reader sees their
    /// content; an operator delivers again as well; an admin sees who is logged in as well, and logs others out
    #[arg(long, value_parser = PossibleValuesParser::new(WebRole::TEXTS).try_map(role))]
    role: WebRole,
    /// Where browsers find the web UI of a directory
    #[arg(long, value_name = "URL", requires = "embedded", default_value = web_logins::EMBEDDED_ORIGIN)]
    url: String,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsArguments {
    #[command(flatten)]
    query: QueryOptions,
    /// End the session that the list names so
    #[arg(long, value_name = "ID")]
    end: Option<String>,
}

pub(crate) fn run(command: &Command) -> Ended {
    match command {
        Command::Login(arguments) => login(arguments)?,
        Command::Sessions(arguments) => sessions(arguments)?,
    }
    Ok(ExitCode::Ok)
}

fn role(word: String) -> Result<WebRole, &'static str> {
    WebRole::parse(&word).ok_or("there is no such role")
}

fn login(arguments: &LoginArguments) -> Result<(), Failure> {
    let mut session = arguments.site.session()?;
    let missing = || fail(ExitCode::Config, "the configuration has no web UI: web.listen is missing");
    let origin = match session.site.config() {
        Some(config) => config.web.origin().ok_or_else(missing)?,
        None => arguments.url.trim_end_matches('/').to_owned(),
    };
    let (database, by) = session.parts();
    print_line(&web_logins::link(database, by, &origin, &arguments.name, arguments.role)?);
    Ok(())
}

const COLUMNS: Columns<WebSession, 5> = [
    ("ID", |one| one.id.clone()),
    ("NAME", |one| one.name.clone()),
    ("ROLE", |one| one.role.as_str().to_owned()),
    ("SINCE", |one| time_text(one.created_at)),
    ("LAST SEEN", |one| time_text(one.last_seen_at)),
];

fn sessions(SessionsArguments { query, end }: &SessionsArguments) -> Result<(), Failure> {
    let mut session = query.site.session()?;
    let (database, by) = session.parts();
    if let Some(id) = end {
        if !web_logins::end(database, by, id)? {
            let text = format!("there is no login {}: `maildrop_command web sessions` lists them", shell_word(id));
            return Err(fail(ExitCode::NoInput, text));
        }
        print(query.json, &serde_json::json!({ "id": id }), || format!("The login {id} is ended."));
        return Ok(());
    }
    let found = web_sessions::sessions(database, Lifetimes::of(SESSION_IDLE))?;
    print(query.json, &found, || list(&found, "Nobody is logged in.", COLUMNS));
    Ok(())
}
