//! `subscription`: which receivers are notified of events, and at which URL.

use super::site_options::{OperatorSession, QueryOptions, SiteOptions};
use super::{Columns, Ended, Failure, facts, fail, help, json, list, or_dash, print, print_line};
use crate::base::terminal::printable;
use crate::base::timestamp;
use crate::config::Notifications;
use crate::database::DatabaseError;
use crate::ledger::Database;
use crate::ledger::operations_log::Actor;
use crate::operations::notifications;
use crate::operations::subscriptions::{self, NewSubscription, Resource, Subscription, SubscriptionState};
use crate::webhook::{Callback, MasterKey, payload};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::time::Duration;
use sysexits::ExitCode;
use uuid::Uuid;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a subscription, and print the secret that signs its requests
    #[command(after_help = help("subscription create"))]
    Create(Box<CreateArguments>),
    /// List the subscriptions, the oldest first
    #[command(after_help = help("subscription list"))]
    List(QueryOptions),
    /// Show one subscription
    #[command(after_help = help("subscription show"))]
    Show(OneArguments),
    /// Send a test event, to see whether it arrives
    #[command(after_help = help("subscription test"))]
    Test(OneArguments),
    /// Pause a subscription: its events are kept until it is resumed
    #[command(after_help = help("subscription pause"))]
    Pause(OneArguments),
    /// Disable a subscription, with a reason that its owner can read
    #[command(after_help = help("subscription disable"))]
    Disable(DisableArguments),
    /// Resume a paused or disabled subscription, beginning with the kept events
    #[command(after_help = help("subscription resume"))]
    Resume(OneArguments),
    /// Print the secret that signs its requests, or replace it
    #[command(after_help = help("subscription secret"))]
    Secret(SecretArguments),
    /// Delete a subscription, with its pending notifications
    #[command(after_help = help("subscription delete"))]
    Delete(OneArguments),
}

#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    #[command(flatten)]
    query: QueryOptions,
    /// Where requests are sent: an https URL
    #[arg(long, value_name = "URL")]
    callback: String,
    /// Only mail for this domain
    #[arg(long, group = "resource", value_parser = Resource::domain)]
    domain: Option<Resource>,
    /// Only mail for this address
    #[arg(long, group = "resource", value_parser = Resource::address)]
    address: Option<Resource>,
    /// Only copies in this mailbox
    #[arg(long, group = "resource", value_name = "USER/MAILBOX", value_parser = Resource::mailbox)]
    mailbox: Option<Resource>,
    /// Only this message: its identity, as `trace --json` prints it
    #[arg(long, group = "resource", value_name = "IDENTITY", value_parser = Resource::message)]
    message: Option<Resource>,
    /// Only events of this type; may be given several times
    #[arg(long = "type", value_name = "TYPE", value_parser = subscriptions::TYPES)]
    types: Vec<String>,
    /// How much a request says: which copy and which message, or also sender, From, To, Cc, Subject, Date and header fields
    #[arg(long, default_value = "thin", value_parser = ["thin", "full"])]
    detail: String,
    /// One after the other, in the order of their commits: one that fails holds back the rest
    #[arg(long)]
    in_order: bool,
    /// How many requests may be under way at once
    #[arg(long, value_name = "NUMBER", default_value = "4", value_parser = clap::value_parser!(u8).range(1..=64))]
    max_in_flight: u8,
    /// For people
    #[arg(long, default_value = "")]
    description: String,
    /// End it after so long: 30d
    #[arg(long, value_name = "AGE", value_parser = timestamp::duration)]
    expires: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct OneArguments {
    #[command(flatten)]
    query: QueryOptions,
    /// As `subscription list` prints it
    #[arg(value_name = "ID")]
    id: Uuid,
}

#[derive(Debug, Args)]
pub(crate) struct SecretArguments {
    #[command(flatten)]
    one: OneArguments,
    /// Give it another secret
    #[arg(long)]
    new: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DisableArguments {
    #[command(flatten)]
    one: OneArguments,
    /// Why, in one line, for its owner
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
}

/// A line that the subscription's owner can read.
fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("say why in a few words: its owner reads it".into()),
        text if text.chars().count() > 200 => Err("it is longer than 200 characters".into()),
        text if text.chars().any(char::is_control) => Err("one line is wanted".into()),
        text => Ok(text.to_owned()),
    }
}

pub(crate) fn run(command: &Command) -> Ended {
    match command {
        Command::Create(arguments) => create(arguments)?,
        Command::List(QueryOptions { site, json }) => {
            let all = subscriptions::read(open(site)?.database(), None)?;
            print(*json, &all, || list(&all, "Nobody is subscribed.", COLUMNS));
        }
        Command::Show(OneArguments { query, id }) => show(&one(open(&query.site)?.database(), *id)?, query.json),
        Command::Test(arguments) => test(arguments)?,
        Command::Disable(DisableArguments { one, reason }) => {
            let disable =
                |database: &mut dyn Database, by: Actor<'_>, id| subscriptions::disable(database, by, id, reason);
            change(one, "it is neither active nor paused", disable)?
        }
        Command::Pause(arguments) => change(arguments, "it is not active", subscriptions::pause)?,
        Command::Resume(arguments) => change(arguments, "it is neither paused nor disabled", subscriptions::resume)?,
        Command::Secret(arguments) => secret(arguments)?,
        Command::Delete(OneArguments { query, id }) => {
            let mut session = open(&query.site)?;
            let gone = one(session.database(), *id)?;
            let (database, by) = session.parts();
            subscriptions::delete(database, by, &gone, None)?;
            if query.json {
                print_line(&json(&serde_json::json!({ "id": gone.id })));
            }
        }
    }
    Ok(ExitCode::Ok)
}

pub(super) fn open(options: &SiteOptions) -> Result<OperatorSession, Failure> {
    options.configured_session("notifications")
}

fn notifications_of(session: &OperatorSession) -> Notifications {
    session.site.config().map(|config| config.notifications.clone()).unwrap_or_default()
}

fn master_key(notifications: &Notifications) -> Result<MasterKey, Failure> {
    let missing = || "notifications.secret_key_file: it is missing, so that nothing is sent".to_owned();
    let key = MasterKey::configured(notifications).and_then(|key| key.ok_or_else(missing));
    key.map_err(|problem| fail(ExitCode::Config, problem))
}

/// The subscription of this id.
pub(super) fn one(database: &mut dyn Database, id: Uuid) -> Result<Subscription, Failure> {
    let found = subscriptions::read(database, Some(id))?.into_iter().next();
    found.ok_or_else(|| fail(ExitCode::NoInput, format!("there is no subscription {id}")))
}

/// A subscription with its secret, for programs.
#[derive(Serialize)]
struct Created<'a> {
    #[serde(flatten)]
    subscription: &'a Subscription,
    secret: String,
    created: bool,
    /// The settings of an existing subscription that differ from the arguments.
    differs: Vec<&'static str>,
}

fn create(arguments: &CreateArguments) -> Result<(), Failure> {
    let CreateArguments { query, domain, address, mailbox, message, .. } = arguments;
    let resource = [domain, address, mailbox, message].into_iter().flatten().next().cloned();
    let resource = resource.unwrap_or_else(Resource::all);
    let mut session = open(&query.site)?;
    let notifications = notifications_of(&session);
    let key = master_key(&notifications)?;
    Callback::parse(&arguments.callback, &notifications).map_err(|refused| {
        fail(ExitCode::DataErr, format!("--callback {}: {refused}", printable(&arguments.callback)))
    })?;
    let new = NewSubscription {
        owner: subscriptions::OPERATOR.into(),
        callback_url: arguments.callback.clone(),
        resource: resource.kind,
        resource_id: resource.id,
        types: subscriptions::types(&arguments.types),
        detail: if arguments.detail == "full" { "full" } else { "thin" },
        in_order: arguments.in_order,
        max_in_flight: arguments.max_in_flight,
        description: arguments.description.clone(),
        verify: notifications.verify_callbacks,
        expires_after: arguments.expires,
    };
    let (database, by) = session.parts();
    let (id, created) = subscriptions::create(database, by, &new)?;
    let subscription = one(database, id)?;
    let secret = key.secret(id, subscription.secret_generation).expose();
    let differs = if created { Vec::new() } else { differences(&subscription, &new) };
    if query.json {
        print_line(&json(&Created { subscription: &subscription, secret, created, differs }));
        return Ok(());
    }
    if !created {
        print_line("It exists already; nothing has changed.");
    }
    if !differs.is_empty() {
        print_line(&format!("It differs in: {}. Delete it first, or change it by the API.", differs.join(", ")));
    }
    show(&subscription, false);
    print_line(&format!("secret             {secret}"));
    Ok(())
}

/// The options in which an existing subscription differs from the arguments.
fn differences(old: &Subscription, new: &NewSubscription) -> Vec<&'static str> {
    let all = [
        ("type", old.types != new.types),
        ("detail", old.detail != new.detail),
        ("in-order", old.in_order != new.in_order),
        // With --in-order, there is one request at a time.
        ("max-in-flight", !new.in_order && old.max_in_flight != new.max_in_flight),
        ("description", old.description != new.description),
        // A new expiry would begin at another moment.
        ("expires", old.expires_at.is_some() || new.expires_after.is_some()),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

const COLUMNS: Columns<Subscription, 6> = [
    ("id", |one| one.id.to_string()),
    ("state", |one| one.state.to_string()),
    ("of", subscriptions::resource_of),
    ("callback", |one| one.callback_url.clone()),
    ("expires", |one| one.expires_at.map(timestamp::time_text).unwrap_or_default()),
    ("description", |one| one.description.clone()),
];

fn change(
    OneArguments { query, id }: &OneArguments,
    otherwise: &str,
    change: impl FnOnce(&mut dyn Database, Actor<'_>, Uuid) -> Result<bool, DatabaseError>,
) -> Result<(), Failure> {
    let mut session = open(&query.site)?;
    let (database, by) = session.parts();
    one(database, *id)?;
    let changed = change(database, by, *id)?;
    let now = one(database, *id)?;
    if !changed {
        return Err(fail(ExitCode::DataErr, format!("{otherwise}: it is {}", state(&now))));
    }
    show(&now, query.json);
    Ok(())
}

fn test(OneArguments { query, id }: &OneArguments) -> Result<(), Failure> {
    let mut session = open(&query.site)?;
    let (database, by) = session.parts();
    let now = one(database, *id)?;
    if now.state != SubscriptionState::Active {
        return Err(fail(ExitCode::DataErr, format!("it is not active: it is {}", now.state)));
    }
    let event = payload::id(notifications::test(database, by, now.id)?);
    print(query.json, &serde_json::json!({ "event": event }), || {
        format!("{event} is due: a notifier sends it within seconds.")
    });
    Ok(())
}

fn secret(SecretArguments { one: OneArguments { query, id }, new }: &SecretArguments) -> Result<(), Failure> {
    let mut session = open(&query.site)?;
    let key = master_key(&notifications_of(&session))?;
    let (database, by) = session.parts();
    one(database, *id)?;
    if *new {
        subscriptions::new_secret(database, by, *id)?;
    }
    subscriptions::shows_secret(database, by, *id)?;
    let generation = one(database, *id)?.secret_generation;
    let secret = key.secret(*id, generation).expose();
    let value = serde_json::json!({ "id": id, "generation": generation, "secret": secret });
    print(query.json, &value, || secret.clone());
    Ok(())
}

/// The state, and its reason if there is one.
fn state(one: &Subscription) -> String {
    one.state_reason.as_ref().map_or_else(|| one.state.to_string(), |why| format!("{}: {why}", one.state))
}

fn show(one: &Subscription, as_json: bool) {
    let order = match one.in_order {
        true => "one after the other, in order".to_owned(),
        false => format!("{} at once", one.max_in_flight),
    };
    let progress = &one.progress;
    let failing = progress.last_failure.as_ref().map_or_else(
        || "none since it last answered".to_owned(),
        |why| format!("{} in a row: {why}", progress.failures),
    );
    let answered = progress.last_success_ago_s.and_then(|ago| Duration::try_from_secs_f64(ago).ok());
    let lines = [
        ("id", one.id.to_string()),
        ("callback", one.callback_url.clone()),
        ("of", subscriptions::resource_of(one)),
        ("types", if one.types.is_empty() { "all".to_owned() } else { one.types.join(", ") }),
        ("detail", one.detail.clone()),
        ("requests", order),
        ("state", state(one)),
        ("description", one.description.clone()),
        ("made", timestamp::time_text(one.created_at)),
        ("expires", or_dash(one.expires_at.map(timestamp::time_text))),
        ("pending", progress.pending.to_string()),
        ("given up", progress.given_up.to_string()),
        ("last answered", or_dash(answered.map(|ago| format!("{} ago", timestamp::span(ago))))),
        ("failures", failing),
    ];
    print(as_json, one, || facts(19, lines));
}
