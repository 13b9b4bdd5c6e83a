//! `token`: who may use the API.

use super::site_options::{LONGEST_ANSWER, SiteOptions, failed};
use super::{complain, json, say, table};
use crate::base::timestamp;
use crate::operations::operations_log::CommandLine;
use crate::operations::subscriptions::Resource;
use crate::operations::tokens::{self, ApiToken, Bounds, NotMade, Wanted};
use clap::{Args, Subcommand};
use std::time::Duration;
use sysexits::ExitCode;
use uuid::Uuid;

const STATUS: &str = "\
It needs the rights of sql/*/grants-operator.sql.

Exit status: 0, 64 for a mistake in the arguments, 66 if there is no such token, 69 if the database cannot be asked, 78 if the \
configuration cannot be read.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Let somebody use the API, and print the token that lets him in: it is shown this once
    Create(CreateArguments),
    /// A line for each token, the oldest first
    List(ListArguments),
    /// Let a token in no more; the subscriptions that were made with it are disabled
    Revoke(RevokeArguments),
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command token create --name agency-a --scope subscriptions:write --domain example.com --expires 365d
  maildrop_command token create --name crm --scope events:read --scope messages:read
  maildrop_command token create --name provider --scope messages:write --domain example.com --rate 20

Only a digest of the token is kept. Without a domain, address or mailbox it is for all mail. Subscriptions belong to the name: a \
second token of it sees those of the first one, so that one can be replaced by the other.

{STATUS}"))]
pub(crate) struct CreateArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Whose it is: letters, digits, and . _ -
    #[arg(long)]
    name: String,
    /// What it may do; may be given several times
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_parser = tokens::SCOPES)]
    scopes: Vec<String>,
    /// For mail for this domain; may be given several times, as the next two
    #[arg(long = "domain", value_name = "DOMAIN")]
    domains: Vec<String>,
    /// For mail for this address
    #[arg(long = "address", value_name = "ADDRESS")]
    addresses: Vec<String>,
    /// For copies in this mailbox
    #[arg(long = "mailbox", value_name = "USER/MAILBOX")]
    mailboxes: Vec<String>,
    /// How many requests it may make in a second
    #[arg(long, value_name = "NUMBER", default_value_t = tokens::RATE, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// It counts for so long: 365d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    expires: Option<Duration>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command token list
  maildrop_command token list --json | jq -r '.[] | select(.valid) | .name'

{STATUS}"))]
pub(crate) struct ListArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command token revoke 0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b

It counts from the next request on. Where another token of the same name counts still, its subscriptions go on.

{STATUS}"))]
pub(crate) struct RevokeArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// As `token list` prints it
    #[arg(value_name = "ID")]
    id: Uuid,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, ExitCode> {
    match command {
        Command::Create(arguments) => create(arguments),
        Command::List(arguments) => list(arguments),
        Command::Revoke(arguments) => revoke(arguments),
    }
}

fn create(arguments: &CreateArguments) -> Result<ExitCode, ExitCode> {
    let named = |names: &[String], read: fn(&str) -> Result<Resource, String>| {
        let read = names.iter().map(|name| read(name).map(|resource| resource.id)).collect::<Result<Vec<_>, _>>();
        read.map_err(|problem| {
            complain(&problem);
            ExitCode::Usage
        })
    };
    let bounds = Bounds {
        domains: named(&arguments.domains, Resource::domain)?,
        addresses: named(&arguments.addresses, Resource::address)?,
        mailboxes: named(&arguments.mailboxes, Resource::mailbox)?,
    };
    let scopes = tokens::SCOPES.into_iter().filter(|scope| arguments.scopes.iter().any(|named| named == scope));
    let wanted = Wanted {
        name: &arguments.name,
        scopes: scopes.collect(),
        bounds,
        rate: arguments.rate,
        expires_after: arguments.expires,
    };
    let (site, mut database) = of_a_site_with_subscribers(&arguments.site)?;
    let by = CommandLine::of(&site);
    let (id, text) = tokens::create(database.as_mut(), by.actor(), wanted).map_err(|error| match error {
        NotMade::Database(error) => failed(&error),
        NotMade::Name(_) => {
            complain(&error.to_string());
            ExitCode::Usage
        }
        NotMade::Random(_) => {
            complain(&error.to_string());
            ExitCode::OsErr
        }
    })?;
    if arguments.json {
        say(&json(&serde_json::json!({ "id": id, "name": arguments.name, "token": text.expose() })));
    } else {
        say(&format!("id     {id}\ntoken  {}", text.expose()));
    }
    Ok(ExitCode::Ok)
}

/// The site's database, where there can be tokens.
fn of_a_site_with_subscribers(
    options: &SiteOptions,
) -> Result<(crate::site::Site, Box<dyn crate::ledger::Database>), ExitCode> {
    if options.embedded.is_some() {
        complain("an embedded site has no API");
        return Err(ExitCode::Config);
    }
    options.open(LONGEST_ANSWER)
}

fn list(arguments: &ListArguments) -> Result<ExitCode, ExitCode> {
    let (_, mut database) = of_a_site_with_subscribers(&arguments.site)?;
    let all = tokens::list(database.as_mut()).map_err(|error| failed(&error))?;
    if arguments.json {
        say(&json(&all));
        return Ok(ExitCode::Ok);
    }
    if all.is_empty() {
        say("There is no token.");
        return Ok(ExitCode::Ok);
    }
    let moment = |moment: Option<i64>| moment.map(timestamp::told).unwrap_or_default();
    let rows = all.iter().map(|token| {
        [
            token.id.to_string(),
            token.name.clone(),
            stands(token).to_owned(),
            token.scopes.join(" "),
            bounds(&token.bounds),
            token.rate.to_string(),
            moment(token.expires_at),
            moment(token.last_used_at),
        ]
    });
    say(&table(["id", "name", "state", "scopes", "for", "rate", "expires", "last used"], rows));
    Ok(ExitCode::Ok)
}

fn stands(token: &ApiToken) -> &'static str {
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

fn revoke(arguments: &RevokeArguments) -> Result<ExitCode, ExitCode> {
    let (site, mut database) = of_a_site_with_subscribers(&arguments.site)?;
    let by = CommandLine::of(&site);
    let revoked = tokens::revoke(database.as_mut(), by.actor(), arguments.id).map_err(|error| failed(&error))?;
    let Some(revoked) = revoked else {
        complain(&format!("there is no token {} that was not revoked before", arguments.id));
        return Err(ExitCode::NoInput);
    };
    if arguments.json {
        say(&json(&serde_json::json!({ "id": revoked.id, "name": revoked.name })));
    } else {
        say(&format!("{}'s token lets nobody in any more.", revoked.name));
    }
    Ok(ExitCode::Ok)
}
