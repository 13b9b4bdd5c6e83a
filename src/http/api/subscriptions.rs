//! Subscriptions: list, create, change and delete.

use super::call::{ApiRequest, Fields, ok, page};
use super::problem::{ApiFailure, Problem};
use super::{Api, BASE};
use crate::base::timestamp;
use crate::ledger::{Database, time_span};
use crate::operations::notifications;
use crate::operations::subscriptions::{
    self, Change, NewSubscription, Resource, Subscription, SubscriptionState, Those, Turn,
};
use crate::operations::tokens::Scope;
use crate::webhook::{Callback, MasterKey, ROTATION};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

/// How many subscriptions may belong to one token's name.
const MOST: u64 = 1000;

/// The longest name of a resource, in characters.
const LONGEST: usize = 511;
const RESOURCES: [&str; 5] = ["all", "domain", "address", "mailbox", "message"];
/// The detail that includes the message's header fields.
const FULL: &str = "full";

/// The JSON of a subscription's secret.
fn secret_json(key: &MasterKey, one: &Subscription) -> Value {
    let until = one.secret_rotated_at.map(|at| at.saturating_add(time_span::microseconds(ROTATION)));
    json!({
        "secret": key.secret(one.id, one.secret_generation).expose(),
        "previous_valid_until": until.filter(|until| *until > timestamp::now()).map(timestamp::exact),
    })
}

/// The JSON of a subscription with its secret.
fn with_secret(key: &MasterKey, one: &Subscription) -> Value {
    let mut both = json!(one);
    if let (Value::Object(both), Value::Object(mut secret)) = (&mut both, secret_json(key, one)) {
        both.append(&mut secret);
    }
    both
}

fn master_key(api: &Api) -> Result<&MasterKey, Problem> {
    let missing = || Problem::not_set_up("no notifications are sent here: notifications.secret_key_file is not named");
    api.settings.key.as_ref().ok_or_else(missing)
}

pub(super) fn list(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&["cursor", "limit", "resource", "resource_id", "state"])?;
    if call.query.one("resource_id")?.is_some_and(|id| id.chars().count() > LONGEST) {
        return Err(Problem::wrong_parameter("resource_id", format!("it is longer than {LONGEST} characters")).into());
    }
    let (limit, after) = (call.query.limit()?, call.query.cursor(|text| Uuid::try_parse(text).ok())?);
    let owner = call.owner();
    let those = Those {
        owner: Some(&owner),
        resource: call.query.word("resource", RESOURCES)?,
        resource_id: call.query.one("resource_id")?,
        state: call
            .query
            .word("state", SubscriptionState::ALL.map(SubscriptionState::as_str))?
            .and_then(SubscriptionState::parse),
        after,
    };
    let found = subscriptions::some(database, &those, limit)?;
    let next = found.last().filter(|_| found.len() == limit).map(|last| last.id);
    Ok(page(&call.query, found.iter().filter(|one| call.sees(one)).map(|one| json!(one)).collect(), next))
}

pub(super) fn show(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    Ok(ok(json!(call.subscription(database)?)))
}

pub(super) fn create(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    let settings = &call.api.settings;
    let key = master_key(&call.api)?;
    let mut fields = call.fields()?;
    let callback_url = callback_url(call, &mut fields);
    let callback_url = fields.required("callback_url", callback_url);
    let kind = fields.word("resource", None, RESOURCES);
    let kind = fields.required("resource", kind);
    let id = fields.text("resource_id", Some(""), LONGEST).unwrap_or_default();
    let resource = kind.and_then(|kind| match named(kind, &id) {
        Ok(resource) => Some(resource),
        Err(problem) => {
            fields.is_wrong("resource_id", problem);
            None
        }
    });
    let types = fields.types("types").unwrap_or_default();
    let detail = fields.word("detail", Some("thin"), ["thin", FULL]).unwrap_or("thin");
    let in_order = fields.flag("in_order").unwrap_or_default();
    let max_in_flight = fields.number("max_in_flight", 4, 1..=64).unwrap_or(4);
    let description = fields.text("description", Some(""), 200).unwrap_or_default();
    let expires = expires(&mut fields).flatten();
    fields.end()?;
    // Both exist: a missing field was reported above.
    let (Some(callback_url), Some(resource)) = (callback_url, resource) else {
        return Err(Problem::unreadable_body("fields are missing").into());
    };
    if detail == FULL {
        may_read_messages(call)?;
    }
    if !call.token.bounds.hold_resource(resource.kind, &resource.id) {
        let detail = format!("it may not see {} {}", resource.kind, resource.id);
        return Err(Problem::out_of_bounds(detail.trim_end()).into());
    }
    let after = |at: i64| Duration::from_micros(u64::try_from(at.saturating_sub(timestamp::now())).unwrap_or_default());
    let new = NewSubscription {
        owner: call.owner(),
        callback_url,
        resource: resource.kind,
        resource_id: resource.id,
        types,
        detail,
        in_order,
        max_in_flight,
        description,
        verify: settings.notifications.verify_callbacks,
        expires_after: expires.map(after),
    };
    // Creating a subscription that exists returns it, even if the limit is reached.
    if subscriptions::there(database, &new)?.is_none() && subscriptions::count_of_owner(database, &new.owner)? >= MOST {
        return Err(Problem::too_many_subscriptions(MOST).into());
    }
    let (id, created) = subscriptions::create(database, call.actor(), &new)?;
    let found = subscriptions::read(database, Some(id))?.into_iter().next();
    // If it is missing, another request has deleted it meanwhile.
    let made = found.ok_or_else(Problem::not_found)?;
    let body = with_secret(key, &made);
    Ok(if created {
        (StatusCode::CREATED, [(LOCATION, format!("{BASE}/subscriptions/{id}"))], ok(body)).into_response()
    } else {
        ok(body)
    })
}

/// A subscription with full detail sends the same data as `GET /messages/{id}`, so it needs the same scope.
fn may_read_messages(call: &ApiRequest) -> Result<(), Problem> {
    let scope = Scope::MessagesRead;
    if scope.is_of(&call.token) { Ok(()) } else { Err(Problem::out_of_scope(scope.as_str())) }
}

/// The callback URL, if it may be called.
fn callback_url(call: &ApiRequest, fields: &mut Fields) -> Option<String> {
    let url = fields.text("callback_url", None, 2048)?;
    match Callback::parse(&url, &call.api.settings.notifications) {
        Ok(_) => Some(url),
        Err(refused) => {
            fields.is_wrong("callback_url", refused.to_string());
            None
        }
    }
}

/// The moment at which the subscription ends; `Some(None)`: it does not end.
fn expires(fields: &mut Fields) -> Option<Option<i64>> {
    let expires = fields.moment("expires_at")?;
    if expires.is_some_and(|at| at <= timestamp::now()) {
        fields.is_wrong("expires_at", "it is over already");
    }
    Some(expires)
}

/// The resource that is subscribed to.
fn named(kind: &str, id: &str) -> Result<Resource, &'static str> {
    match kind {
        "domain" => Resource::domain(id).map_err(|_| "the domain of an address is wanted: mail.axial.net"),
        "address" => Resource::address(id).map_err(|_| "an address is wanted: doug@mail.axial.net"),
        "mailbox" => Resource::mailbox(id).map_err(|_| "a user, a slash and a mailbox are wanted: doug/INBOX"),
        "message" => Resource::message(id).map_err(|_| "a message's id is wanted: 64 hexadecimal digits"),
        _ if id.is_empty() => Ok(Resource::all()),
        _ => Err("all has none"),
    }
}

pub(super) fn change(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    let is = call.subscription(database)?;
    let mut fields = call.fields()?;
    let wanted = Change {
        callback_url: callback_url(call, &mut fields),
        types: fields.types("types"),
        detail: fields.word("detail", Some("thin"), ["thin", FULL]),
        in_order: fields.flag("in_order"),
        max_in_flight: fields.number("max_in_flight", 4, 1..=64),
        description: fields.text("description", Some(""), 200),
        expires_at: expires(&mut fields),
    };
    let states = [SubscriptionState::Active, SubscriptionState::Paused].map(SubscriptionState::as_str);
    let state = fields.word("state", None, states).and_then(SubscriptionState::parse);
    fields.end()?;
    let moves = wanted.callback_url.as_ref().is_some_and(|url| *url != is.callback_url);
    // Another token of the same name may have subscribed with full detail. Only a token that may read messages may send that to
    // another URL.
    if wanted.detail == Some(FULL) || moves && wanted.detail.unwrap_or(&is.detail) == FULL {
        may_read_messages(call)?;
    }
    let state = state.filter(|state| *state != is.state);
    if let Some(state) = state {
        // A new callback must first be verified.
        if !may_become(is.state, state) || moves {
            return Err(Problem::another_state(is.state).into());
        }
    }
    let verify = call.api.settings.notifications.verify_callbacks;
    let turn = state.map(|state| if state == SubscriptionState::Paused { Turn::Pause } else { Turn::Resume });
    if !subscriptions::change(database, call.actor(), &is, &wanted, turn, verify)? {
        return Err(Problem::there_already().into());
    }
    Ok(ok(json!(call.subscription(database)?)))
}

/// Whether a client may change the state in this way. Only the callback can answer a verification request.
fn may_become(is: SubscriptionState, state: SubscriptionState) -> bool {
    use SubscriptionState::{Active, Disabled, Paused};
    matches!((state, is), (Paused, Active) | (Active, Paused | Disabled))
}

pub(super) fn delete(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    let one = call.subscription(database)?;
    if subscriptions::delete(database, call.actor(), &one, Some(notifications::soon()))? {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Err(Problem::goes_on().into())
    }
}

pub(super) fn secret(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    let key = master_key(&call.api)?;
    let one = call.subscription(database)?;
    subscriptions::shows_secret(database, call.actor(), one.id)?;
    Ok(ok(secret_json(key, &one)))
}

pub(super) fn new_secret(call: &ApiRequest, database: &mut dyn Database) -> Result<Response, ApiFailure> {
    call.query.reject_unknown(&[])?;
    let key = master_key(&call.api)?;
    let one = call.subscription(database)?;
    subscriptions::new_secret(database, call.actor(), one.id)?;
    Ok(ok(secret_json(key, &call.subscription(database)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_changed_by_three_ways_and_none_goes_round_the_question() {
        let (states, ways) =
            (SubscriptionState::ALL, [("active", "paused"), ("paused", "active"), ("disabled", "active")]);
        for (is, state) in states.iter().flat_map(|is| states.map(|state| (*is, state))) {
            assert_eq!(may_become(is, state), ways.contains(&(is.as_str(), state.as_str())), "{is} {state}");
        }
        assert_eq!(states.map(SubscriptionState::as_str), ["unverified", "active", "paused", "disabled"]);
    }

    #[test]
    fn each_kind_of_resource_is_read_and_has_an_id_of_its_kind() {
        let message = "ab".repeat(32);
        let ids = ["", "mail.axial.net", "doug@mail.axial.net", "doug/INBOX", &message];
        for ((kind, id), other) in RESOURCES.iter().zip(ids).zip(["x", "", "doug", "INBOX", "ab"]) {
            let resource = named(kind, id).unwrap();
            assert_eq!((resource.kind, resource.id.as_str()), (*kind, id));
            assert!(named(kind, other).is_err(), "{kind} {other}");
        }
    }
}
