//! `token`: who may use the API.

use super::site_options::{OperatorSession, QueryOptions, SiteOptions};
use super::{Columns, Ended, Failure, fail, help, list, print};
use crate::base::timestamp;
use crate::operations::subscriptions::Resource;
use crate::operations::tokens::{self, ApiToken, Bounds, NewToken, NotMade, Scope};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use std::time::Duration;
use sysexits::ExitCode;
use uuid::Uuid;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a token for the API, and print it, this once
    #[command(after_help = help("token create"))]
    Create(CreateArguments),
    /// List the tokens, the oldest first
    #[command(after_help = help("token list"))]
    List(QueryOptions),
    /// Revoke a token, and disable the subscriptions of its name if it is the last one
    #[command(after_help = help("token revoke"))]
    Revoke(RevokeArguments),
}

#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    #[command(flatten)]
    query: QueryOptions,
    /// Whose it is: letters, digits, and . _ -
    #[arg(long)]
    name: String,
    /// What it may do; may be given several times
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_parser = PossibleValuesParser::new(Scope::TEXTS).try_map(scope))]
    scopes: Vec<Scope>,
    /// For mail for this domain; may be given several times, as the next two
    #[arg(long = "domain", value_name = "DOMAIN", value_parser = Resource::domain)]
    domains: Vec<Resource>,
    /// For mail for this address
    #[arg(long = "address", value_name = "ADDRESS", value_parser = Resource::address)]
    addresses: Vec<Resource>,
    /// For copies in this mailbox
    #[arg(long = "mailbox", value_name = "USER/MAILBOX", value_parser = Resource::mailbox)]
    mailboxes: Vec<Resource>,
    /// How many requests it may make in a second
    #[arg(long, value_name = "NUMBER", default_value_t = tokens::RATE, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// How long it is valid: 365d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    expires: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct RevokeArguments {
    #[command(flatten)]
    query: QueryOptions,
    /// As `token list` prints it
    #[arg(value_name = "ID")]
    id: Uuid,
}

pub(crate) fn run(command: &Command) -> Ended {
    match command {
        Command::Create(arguments) => create(arguments)?,
        Command::List(QueryOptions { site, json }) => {
            let all = tokens::list(open(site)?.database())?;
            print(*json, &all, || list(&all, "There is no token.", COLUMNS));
        }
        Command::Revoke(RevokeArguments { query, id }) => {
            let mut session = open(&query.site)?;
            let (database, by) = session.parts();
            let revoked = tokens::revoke(database, by, *id)?;
            let missing = || fail(ExitCode::NoInput, format!("there is no token {id} that was not revoked before"));
            let revoked = revoked.ok_or_else(missing)?;
            let value = serde_json::json!({ "id": revoked.id, "name": revoked.name });
            print(query.json, &value, || format!("{}'s token is revoked.", revoked.name));
        }
    }
    Ok(ExitCode::Ok)
}

fn open(options: &SiteOptions) -> Result<OperatorSession, Failure> {
    options.configured_session("API")
}

fn scope(word: String) -> Result<Scope, &'static str> {
    Scope::parse(&word).ok_or("there is no such scope")
}

fn create(arguments: &CreateArguments) -> Result<(), Failure> {
    let ids = |resources: &[Resource]| resources.iter().map(|resource| resource.id.clone()).collect();
    let scopes = Scope::ALL.into_iter().filter(|scope| arguments.scopes.contains(scope)).map(Scope::as_str);
    let wanted = NewToken {
        name: &arguments.name,
        scopes: scopes.collect(),
        bounds: Bounds {
            domains: ids(&arguments.domains),
            addresses: ids(&arguments.addresses),
            mailboxes: ids(&arguments.mailboxes),
        },
        rate: arguments.rate,
        expires_after: arguments.expires,
    };
    let mut session = open(&arguments.query.site)?;
    let (database, by) = session.parts();
    let (id, text) = tokens::create(database, by, wanted).map_err(|error| match error {
        NotMade::Database(error) => error.into(),
        NotMade::Name(_) => fail(ExitCode::Usage, error.to_string()),
        NotMade::Random(_) => fail(ExitCode::OsErr, error.to_string()),
    })?;
    let value = serde_json::json!({ "id": id, "name": arguments.name, "token": text.expose() });
    print(arguments.query.json, &value, || format!("id     {id}\ntoken  {}", text.expose()));
    Ok(())
}

const COLUMNS: Columns<ApiToken, 8> = [
    ("id", |token| token.id.to_string()),
    ("name", |token| token.name.clone()),
    ("state", |token| state(token).to_owned()),
    ("scopes", |token| token.scopes.join(" ")),
    ("for", |token| bounds(&token.bounds)),
    ("rate", |token| token.rate.to_string()),
    ("expires", |token| token.expires_at.map(timestamp::time_text).unwrap_or_default()),
    ("last used", |token| token.last_used_at.map(timestamp::time_text).unwrap_or_default()),
];

fn state(token: &ApiToken) -> &'static str {
    match (token.valid, token.revoked_at) {
        (true, _) => "valid",
        (false, Some(_)) => "revoked",
        (false, None) => "expired",
    }
}

fn bounds(bounds: &Bounds) -> String {
    if bounds.is_everything() {
        return "all mail".into();
    }
    let Bounds { domains, addresses, mailboxes } = bounds;
    domains.iter().chain(addresses).chain(mailboxes).cloned().collect::<Vec<_>>().join(" ")
}
