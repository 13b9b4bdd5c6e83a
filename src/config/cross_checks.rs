//! The rules that concern more than one section, or that a type cannot express.

use super::source::{ConfigError, Source};
use super::{Config, Delivery, DomainRule, LogTo};
use crate::imap::{is_named_after, login_names_the_user};
use crate::ledger::one_name;
use crate::lock::OF_PROGRAMS;
use crate::message::fold;
use humantime::format_duration as span;
use std::time::Duration;

/// The least time between `sent.retry_for` and the end of Postfix's retries, unless the queue lifetime is short. It exceeds
/// Postfix's time between two tries: `maximal_backoff_time` (4000 s) and `queue_run_delay` (300 s), postconf(5). So at least
/// one try accepts that the Sent copy stays owed.
const LAST_TRY: Duration = Duration::from_hours(2);

impl Config {
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        self.check_times(source)?;
        let Self { lock, routing, imap, sent, log, .. } = self;
        let delimits = |c: char| c.is_ascii_punctuation() && !matches!(c, '@' | '"' | '\\');
        let is_odd = !routing.recipient_delimiter.chars().all(delimits);
        let of_programs = "a namespace that ends in \" exec\" belongs to `lock exec`: give it another end";
        let as_postfix = "write what Postfix's recipient_delimiter says, such as \"+\" or \"+-\"; \"\" for none";
        source.section("lock").refuse_first(&[
            (lock.namespace.is_empty(), "namespace", "it is empty: leave it out for \"maildrop\""),
            (lock.namespace.ends_with(OF_PROGRAMS), "namespace", of_programs),
        ])?;
        source.section("routing").refuse_first(&[(is_odd, "recipient_delimiter", as_postfix)])?;
        for (at, rule) in routing.domain.iter().enumerate() {
            check_domain(rule, source)?;
            let name = fold(&rule.domain);
            let is_second = routing.domain.iter().take(at).any(|earlier| fold(&earlier.domain) == name);
            source.refuse_if(is_second, "routing.domain", || {
                format!("{:?} has a rule already, and only the first would count", rule.domain)
            })?;
        }
        if !login_names_the_user(imap.act_for_user, imap.login_user.as_deref())
            && let Some(rule) = routing.domain.iter().find(|rule| !leads_to_its_user_by_name(rule, sent.enabled))
        {
            let problem = format!(
                "with {} the login says of nobody whose mailbox it is for: everybody's mail for {} would go to one INBOX; say \
                 login_user = \"{{user}}*service\" or however your server wants it, or act_for_user = true",
                if imap.login_user.is_some() { "no {user} in it" } else { "none" },
                rule.domain
            );
            return Err(source.error("imap.login_user", &problem));
        }
        let is_empty = sent.authserv_id.as_ref().is_some_and(|id| id.trim().is_empty());
        let fix = "it is empty: leave it out, or name your filter's";
        source.section("sent").refuse_first(&[(is_empty, "authserv_id", fix)])?;
        let problem = match (log.to, &log.file) {
            (LogTo::File, None) => "it is missing: name the file to log to",
            (LogTo::Syslog | LogTo::Journald, Some(_)) => "it is used only with to = \"file\": leave out one of them",
            _ => return Ok(()),
        };
        Err(source.error("log.file", problem))
    }

    fn check_times(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let Delivery { deadline, postfix_time_limit, postfix_queue_lifetime, .. } = self.delivery;
        let append_grace = self.imap.append_grace;
        let retry_for = self.sent.retry_for(postfix_queue_lifetime);
        let last_try = LAST_TRY.min(postfix_queue_lifetime / 2);
        let [limit, time, lifetime] = [postfix_time_limit, deadline, postfix_queue_lifetime].map(span);
        let [grace, retries, rest] = [append_grace, retry_for, last_try].map(span);
        let needs_time = "a delivery needs time: the default is \"240s\"";
        source.section("delivery").refuse_first(&[(deadline.is_zero(), "deadline", needs_time)])?;
        source.refuse_if(deadline >= postfix_time_limit, "delivery.deadline", || {
            format!(
                "{time} is not below delivery.postfix_time_limit ({limit}), at which Postfix kills the delivery and bounces the message"
            )
        })?;
        source.refuse_if(append_grace <= deadline, "imap.append_grace", || {
            format!(
                "{grace} is not above delivery.deadline ({time}): until that has passed, the APPEND of an earlier attempt may still land"
            )
        })?;
        // Otherwise Postfix might bounce a message that was delivered.
        source.refuse_if(append_grace > postfix_queue_lifetime / 4, "imap.append_grace", || {
            format!(
                "{grace} is more than a quarter of delivery.postfix_queue_lifetime ({lifetime}): of a message whose APPEND was not \
                 answered, Postfix may give up before anybody has looked for it, and bounce what was delivered"
            )
        })?;
        source.refuse_if(retry_for > postfix_queue_lifetime.saturating_sub(last_try), "sent.retry_for", || {
            format!(
                "{retries} is not {rest} below delivery.postfix_queue_lifetime ({lifetime}): Postfix may give up before the Sent copy \
                 does, and bounce what the recipient has got"
            )
        })?;
        if let Some((key, problem)) = self.retention.forgets_too_early(postfix_queue_lifetime + append_grace) {
            return Err(source.error(&format!("retention.{key}"), &problem));
        }
        if let Some(problem) = self.retention.forgets_events_too_early(&self.notifications.retry_schedule) {
            return Err(source.error("retention.events_older_than", &problem));
        }
        for (key, wait) in
            [("database.failover_timeout", Some(self.database.failover_timeout)), ("lock.wait", self.lock.wait)]
        {
            let Some(wait) = wait.filter(|wait| *wait >= deadline) else { continue };
            let wait = span(wait);
            let problem =
                format!("{wait} is not below delivery.deadline ({time}): nothing would be left for the delivery");
            return Err(source.error(key, &problem));
        }
        Ok(())
    }
}

fn check_domain(rule: &DomainRule, source: &Source<'_>) -> Result<(), ConfigError> {
    let DomainRule { domain, user, inbox, sent } = rule;
    let is_odd = domain.is_empty() || domain.contains(['@', ' ']) || domain.ends_with('.');
    source.refuse_if(is_odd, "routing.domain", || format!("name = {domain:?} is no domain: write \"example.com\""))?;
    source.refuse_if(!rule.has_known_placeholders(), "routing.domain", || {
        format!("user = {user:?} of {domain}: only {{address}}, {{local}} and {{domain}} can stand in it")
    })?;
    let is_one_mailbox = inbox.is_empty() || sent.is_empty() || one_name(inbox) == one_name(sent);
    source.refuse_if(is_one_mailbox, "routing.domain", || {
        format!("inbox and sent of {domain} have to be the names of two mailboxes")
    })
}

/// Whether the rule's mailbox names contain their user. These names are the same for the whole domain, so the rule must name
/// a single user.
fn leads_to_its_user_by_name(rule: &DomainRule, with_sent: bool) -> bool {
    let DomainRule { user, inbox, sent, .. } = rule;
    !user.contains('{') && is_named_after(inbox, user) && (!with_sent || is_named_after(sent, user))
}
