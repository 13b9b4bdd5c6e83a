//! `subscription`: who is told of what happens to messages, and where.

use super::site_options::{SiteOptions, connect, failed};
use super::{complain, json, say, table};
use crate::base::terminal::printable;
use crate::base::timestamp;
use crate::config::{Config, Notifications};
use crate::ledger::Database;
use crate::ledger::operations_log::Actor;
use crate::operations::notifications;
use crate::operations::operations_log::CommandLine;
use crate::operations::subscriptions::{self, NewSubscription, Resource, Subscription, SubscriptionState};
use crate::site::Site;
use crate::webhook::{Callback, MasterKey, payload};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::time::Duration;
use sysexits::ExitCode;
use uuid::Uuid;

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_mins(1);

const STATUS: &str = "\
Exit status: 0, 64 for a mistake in the arguments, 65 for a callback that may not be called or a subscription that is not in the \
state for it, 66 if there is no such subscription, 69 if the database cannot be asked, 78 if the configuration cannot be read or \
has no notifications (notifications.secret_key_file).";

const WHAT_IT_IS: &str = "\
A subscription is told by signed requests (Standard Webhooks) of what happens to copies of messages, from the first delivery on that \
is recorded after this has answered. An event is written with the copy, in one transaction: none is lost, and none is made up. A \
notification may come twice, and out of order.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tell somebody of what happens from now on, and print the secret that signs it
    Create(CreateArguments),
    /// A line for each subscription, the oldest first
    List(ListArguments),
    /// All that is known of one subscription
    #[command(after_help = of_one("show"))]
    Show(OneArguments),
    /// Send it something, to see that it comes
    Test(TestArguments),
    /// Tell it nothing for now: what happens is kept, until it is resumed
    #[command(after_help = of_one("pause"))]
    Pause(OneArguments),
    /// Tell it nothing more, and say why: others of its owner hear of it
    Disable(DisableArguments),
    /// Go on telling one that was paused or disabled, beginning with what was kept
    #[command(after_help = of_one("resume"))]
    Resume(OneArguments),
    /// Print the secret that signs what it is told, or give it another one
    Secret(SecretArguments),
    /// Remove it, with what it was still to be told
    #[command(after_help = of_one("delete"))]
    Delete(OneArguments),
}

fn of_one(verb: &str) -> String {
    format!(
        "Example:\n  maildrop_command subscription {verb} 0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b\n\n\
         `maildrop_command subscription list` prints each one's ID.\n\n{STATUS}"
    )
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Detail {
    /// Names and numbers: which copy, which message
    Thin,
    /// Sender, From, To, Cc, Subject, Date and header fields as well
    Full,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command subscription create --callback https://example.com/mail
  maildrop_command subscription create --callback https://example.com/mail --domain example.com --type message.delivered
  maildrop_command subscription create --callback https://example.com/mail --address scuba@example.com --detail full --in-order
  maildrop_command subscription create --callback https://example.com/mail --mailbox scuba/INBOX --expires 30d

{WHAT_IT_IS} Without a resource it is told of all mail.

The same once more makes no second one, and prints the same secret. Unless notifications.verify_callbacks is false, the callback is \
first asked to answer with a challenge.

{STATUS}"))]
pub(crate) struct CreateArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Where it is told: an https URL
    #[arg(long, value_name = "URL")]
    callback: String,
    /// Only of mail for this domain
    #[arg(long, group = "resource")]
    domain: Option<String>,
    /// Only of mail for this address
    #[arg(long, group = "resource")]
    address: Option<String>,
    /// Only of copies in this mailbox
    #[arg(long, group = "resource", value_name = "USER/MAILBOX")]
    mailbox: Option<String>,
    /// Only of this message: its identity, as `trace --json` prints it
    #[arg(long, group = "resource", value_name = "IDENTITY")]
    message: Option<String>,
    /// Only of events of this type; may be given several times
    #[arg(long = "type", value_name = "TYPE", value_parser = subscriptions::TYPES)]
    types: Vec<String>,
    /// How much it is told
    #[arg(long, value_enum, default_value = "thin")]
    detail: Detail,
    /// One after the other, in the order of their commits: what fails holds back the rest
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
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command subscription list
  maildrop_command subscription list --json | jq -r '.[] | select(.state == \"disabled\") | .callback_url'

{STATUS}"))]
pub(crate) struct ListArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OneArguments {
    #[command(flatten)]
    site: SiteOptions,
    /// As `subscription list` prints it
    #[arg(value_name = "ID")]
    id: Uuid,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command subscription secret 0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b
  maildrop_command subscription secret --new 0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b

The secret is stored nowhere: it is derived from the file notifications.secret_key_file. After --new both secrets sign for a day.

{STATUS}"))]
pub(crate) struct SecretArguments {
    #[command(flatten)]
    one: OneArguments,
    /// Give it another secret
    #[arg(long)]
    new: bool,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command subscription test 0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b

It is told an event of type subscription.test, whatever types it wants: the id is printed, and is the request's webhook-id. A notifier \
sends it within seconds; `subscription show` says whether the receiver has answered. One that is not active is sent none.

{STATUS}"))]
pub(crate) struct TestArguments {
    #[command(flatten)]
    one: OneArguments,
}

#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  maildrop_command subscription disable 0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b --reason 'asked for by its owner, ticket 4711'

`show` and `list --json` say the reason. What happens is kept, and told once it is resumed; `notify give-up` leaves it out.

{STATUS}"))]
pub(crate) struct DisableArguments {
    #[command(flatten)]
    one: OneArguments,
    /// Why, in one line, for its owner
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
}

/// A line that its owner can read.
fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("say why in a few words: its owner reads it".into()),
        text if text.chars().count() > 200 => Err("it is longer than 200 characters".into()),
        text if text.chars().any(char::is_control) => Err("one line is wanted".into()),
        text => Ok(text.to_owned()),
    }
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, ExitCode> {
    match command {
        Command::Create(arguments) => create(arguments),
        Command::List(arguments) => list(arguments),
        Command::Show(arguments) => {
            let mut database = open(&arguments.site)?.1;
            tell(&one(database.as_mut(), arguments.id)?, arguments.json);
            Ok(ExitCode::Ok)
        }
        Command::Test(arguments) => test(&arguments.one),
        Command::Disable(arguments) => disable(arguments),
        Command::Pause(arguments) => change(arguments, "it is not active", subscriptions::pause),
        Command::Resume(arguments) => {
            let otherwise = "it is neither paused nor disabled";
            change(arguments, otherwise, subscriptions::resume)
        }
        Command::Secret(arguments) => secret(arguments),
        Command::Delete(arguments) => delete(arguments),
    }
}

/// The site's notifications, and its database.
fn open(options: &SiteOptions) -> Result<(Notifications, Box<dyn Database>), ExitCode> {
    let (_, notifications, database) = open_site(options)?;
    Ok((notifications, database))
}

/// The same, and the site.
fn open_site(options: &SiteOptions) -> Result<(Site, Notifications, Box<dyn Database>), ExitCode> {
    options.log_to_stderr();
    let site = options.resolve()?;
    let config = told_by(&site)?;
    let notifications = config.notifications.clone();
    let database = connect(&site, PATIENCE)?;
    Ok((site, notifications, database))
}

/// The configuration of a site that tells subscribers what happens.
pub(super) fn told_by(site: &Site) -> Result<&Config, ExitCode> {
    site.config().ok_or_else(|| {
        complain("an embedded site tells nobody");
        ExitCode::Config
    })
}

fn master_key(notifications: &Notifications) -> Result<MasterKey, ExitCode> {
    let missing = || "notifications.secret_key_file: it is missing, so that nobody is told anything".to_owned();
    let key = MasterKey::configured(notifications).and_then(|key| key.ok_or_else(missing));
    key.map_err(|problem| {
        complain(&problem);
        ExitCode::Config
    })
}

/// The subscription of this id.
pub(super) fn one(database: &mut dyn Database, id: Uuid) -> Result<Subscription, ExitCode> {
    let found = subscriptions::read(database, Some(id)).map_err(|error| failed(&error))?;
    found.into_iter().next().ok_or_else(|| {
        complain(&format!("there is no subscription {id}"));
        ExitCode::NoInput
    })
}

/// A subscription with its secret, for programs.
#[derive(Serialize)]
struct Created<'a> {
    #[serde(flatten)]
    subscription: &'a Subscription,
    secret: String,
    created: bool,
    /// What is not as it was asked for, since it was there already.
    differs: Vec<&'static str>,
}

fn create(arguments: &CreateArguments) -> Result<ExitCode, ExitCode> {
    let resource = match (&arguments.domain, &arguments.address, &arguments.mailbox, &arguments.message) {
        (Some(domain), ..) => Resource::domain(domain),
        (_, Some(address), ..) => Resource::address(address),
        (_, _, Some(mailbox), _) => Resource::mailbox(mailbox),
        (.., Some(message)) => Resource::message(message),
        _ => Ok(Resource::all()),
    };
    let resource = resource.map_err(|problem| {
        complain(&problem);
        ExitCode::Usage
    })?;
    let (site, notifications, mut database) = open_site(&arguments.site)?;
    let key = master_key(&notifications)?;
    Callback::parse(&arguments.callback, &notifications).map_err(|refused| {
        complain(&format!("--callback {}: {refused}", printable(&arguments.callback)));
        ExitCode::DataErr
    })?;
    let new = NewSubscription {
        owner: subscriptions::OPERATOR.into(),
        callback_url: arguments.callback.clone(),
        resource: resource.kind,
        resource_id: resource.id,
        types: subscriptions::types(&arguments.types),
        detail: match arguments.detail {
            Detail::Thin => "thin",
            Detail::Full => "full",
        },
        in_order: arguments.in_order,
        max_in_flight: arguments.max_in_flight,
        description: arguments.description.clone(),
        verify: notifications.verify_callbacks,
        expires_after: arguments.expires,
    };
    let by = CommandLine::of(&site);
    let made = subscriptions::create(database.as_mut(), by.actor(), &new);
    let (id, created) = made.map_err(|error| failed(&error))?;
    let subscription = one(database.as_mut(), id)?;
    let secret = key.secret(id, subscription.secret_generation).expose();
    let differs = if created { Vec::new() } else { not_as_asked(&subscription, &new) };
    if arguments.json {
        say(&json(&Created { subscription: &subscription, secret, created, differs }));
        return Ok(ExitCode::Ok);
    }
    if !created {
        say("It was there already; nothing has changed.");
    }
    if !differs.is_empty() {
        say(&format!("Not as asked for: {}. Delete it first, or change it by the API.", differs.join(", ")));
    }
    tell(&subscription, false);
    say(&format!("secret             {secret}"));
    Ok(ExitCode::Ok)
}

/// What one that was there already has otherwise, by the names of the options.
fn not_as_asked(there: &Subscription, new: &NewSubscription) -> Vec<&'static str> {
    let all = [
        ("type", there.types != new.types),
        ("detail", there.detail != new.detail),
        ("in-order", there.in_order != new.in_order),
        // Where it is told in order, this counts for nothing.
        ("max-in-flight", !new.in_order && there.max_in_flight != new.max_in_flight),
        ("description", there.description != new.description),
        // From when on it was to count is another moment now.
        ("expires", there.expires_at.is_some() || new.expires_after.is_some()),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

fn list(arguments: &ListArguments) -> Result<ExitCode, ExitCode> {
    let mut database = open(&arguments.site)?.1;
    let all = subscriptions::read(database.as_mut(), None).map_err(|error| failed(&error))?;
    if arguments.json {
        say(&json(&all));
        return Ok(ExitCode::Ok);
    }
    if all.is_empty() {
        say("Nobody is subscribed.");
        return Ok(ExitCode::Ok);
    }
    let rows = all.iter().map(|one| {
        [
            one.id.to_string(),
            one.state.to_string(),
            subscriptions::resource_of(one),
            one.callback_url.clone(),
            one.expires_at.map(timestamp::told).unwrap_or_default(),
            one.description.clone(),
        ]
    });
    say(&table(["id", "state", "of", "callback", "expires", "description"], rows));
    Ok(ExitCode::Ok)
}

fn change(
    arguments: &OneArguments,
    otherwise: &str,
    change: fn(&mut dyn Database, Actor<'_>, Uuid) -> Result<bool, crate::database::DatabaseError>,
) -> Result<ExitCode, ExitCode> {
    let (site, _, mut database) = open_site(&arguments.site)?;
    one(database.as_mut(), arguments.id)?;
    let by = CommandLine::of(&site);
    let changed = change(database.as_mut(), by.actor(), arguments.id).map_err(|error| failed(&error))?;
    let now = one(database.as_mut(), arguments.id)?;
    if !changed {
        complain(&format!("{otherwise}: it is {}", now.state));
        return Err(ExitCode::DataErr);
    }
    tell(&now, arguments.json);
    Ok(ExitCode::Ok)
}

fn delete(arguments: &OneArguments) -> Result<ExitCode, ExitCode> {
    let (site, _, mut database) = open_site(&arguments.site)?;
    let gone = one(database.as_mut(), arguments.id)?;
    let by = CommandLine::of(&site);
    subscriptions::delete(database.as_mut(), by.actor(), &gone, None).map_err(|error| failed(&error))?;
    if arguments.json {
        say(&json(&serde_json::json!({ "id": gone.id })));
    }
    Ok(ExitCode::Ok)
}

fn test(arguments: &OneArguments) -> Result<ExitCode, ExitCode> {
    let (site, _, mut database) = open_site(&arguments.site)?;
    let now = one(database.as_mut(), arguments.id)?;
    if now.state != SubscriptionState::Active {
        complain(&format!("it is not active: it is {}", now.state));
        return Err(ExitCode::DataErr);
    }
    let by = CommandLine::of(&site);
    let event = notifications::test(database.as_mut(), by.actor(), now.id).map_err(|error| failed(&error))?;
    let event = payload::id(event);
    if arguments.json {
        say(&json(&serde_json::json!({ "event": event })));
    } else {
        say(&format!("{event} is to be told: a notifier sends it within seconds."));
    }
    Ok(ExitCode::Ok)
}

fn disable(DisableArguments { one: of, reason }: &DisableArguments) -> Result<ExitCode, ExitCode> {
    let (site, _, mut database) = open_site(&of.site)?;
    let now = one(database.as_mut(), of.id)?;
    if now.state == SubscriptionState::Disabled {
        complain(&format!("it is disabled already: {}", now.state_reason.as_deref().unwrap_or("nobody knows why")));
        return Err(ExitCode::DataErr);
    }
    if now.state == SubscriptionState::Unverified {
        complain(&format!(
            "it is told nothing anyway: {}; `subscription delete` removes it",
            subscriptions::UNANSWERED
        ));
        return Err(ExitCode::DataErr);
    }
    let by = CommandLine::of(&site);
    subscriptions::disable(database.as_mut(), by.actor(), of.id, reason).map_err(|error| failed(&error))?;
    tell(&one(database.as_mut(), of.id)?, of.json);
    Ok(ExitCode::Ok)
}

fn secret(arguments: &SecretArguments) -> Result<ExitCode, ExitCode> {
    let SecretArguments { one: of, new } = arguments;
    let (site, notifications, mut database) = open_site(&of.site)?;
    let key = master_key(&notifications)?;
    one(database.as_mut(), of.id)?;
    let by = CommandLine::of(&site);
    if *new {
        subscriptions::new_secret(database.as_mut(), by.actor(), of.id).map_err(|error| failed(&error))?;
    }
    subscriptions::shows_secret(database.as_mut(), by.actor(), of.id).map_err(|error| failed(&error))?;
    let subscription = one(database.as_mut(), of.id)?;
    let generation = subscription.secret_generation;
    let secret = key.secret(of.id, generation).expose();
    if of.json {
        say(&json(&serde_json::json!({ "id": of.id, "generation": generation, "secret": secret })));
    } else {
        say(&secret);
    }
    Ok(ExitCode::Ok)
}

fn tell(one: &Subscription, as_json: bool) {
    if as_json {
        return say(&json(one));
    }
    let told = |moment: Option<i64>| moment.map(timestamp::told).unwrap_or_else(|| "-".to_owned());
    let state = one.state_reason.as_ref().map_or_else(|| one.state.to_string(), |why| format!("{}: {why}", one.state));
    let types = if one.types.is_empty() { "all".to_owned() } else { one.types.join(", ") };
    let order = if one.in_order {
        "one after the other, in order".to_owned()
    } else {
        format!("{} at once", one.max_in_flight)
    };
    let progress = &one.progress;
    let failing = progress.last_failure.as_ref().map_or_else(
        || "none since it last answered".to_owned(),
        |why| format!("{} in a row: {why}", progress.failures),
    );
    let answered = progress.last_success_ago_s.and_then(|ago| Duration::try_from_secs_f64(ago).ok());
    let answered = answered.map_or_else(|| "-".to_owned(), |ago| format!("{} ago", timestamp::span(ago)));
    for (what, value) in [
        ("id", one.id.to_string()),
        ("callback", one.callback_url.clone()),
        ("of", subscriptions::resource_of(one)),
        ("types", types),
        ("detail", one.detail.clone()),
        ("requests", order),
        ("state", state),
        ("description", one.description.clone()),
        ("made", timestamp::told(one.created_at)),
        ("expires", told(one.expires_at)),
        ("still to be told", progress.pending.to_string()),
        ("given up", progress.given_up.to_string()),
        ("last answered", answered),
        ("failures", failing),
    ] {
        say(format!("{what:<18} {}", printable(&value)).trim_end());
    }
}
