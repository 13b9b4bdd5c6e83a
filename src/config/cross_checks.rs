//! The rules that are about more than one section, or that no type expresses.

use super::DomainRule;
use super::servers::NOT_ABSOLUTE;
use super::source::{ConfigError, Source};
use super::{Config, Delivery, LogTo};
use crate::imap::{is_named_after, login_names_the_user};
use crate::ledger::one_name;
use crate::lock::OF_PROGRAMS;
use crate::message::fold;
use std::time::Duration;

/// At least this is left between the last try of a Sent copy and the time when Postfix gives up, unless that is short: more than
/// Postfix waits between two tries (`maximal_backoff_time`, 4000 s, and `queue_run_delay`, 300 s).
const LAST_TRY: Duration = Duration::from_hours(2);

impl Config {
    pub(super) fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let wrong = |section: &str, key: &str, problem: &str| Err(source.error(&[section, key], problem));
        let Delivery { deadline, postfix_time_limit, postfix_queue_lifetime, .. } = self.delivery;
        let retry_for = self.sent.retry_for(postfix_queue_lifetime);
        let last_try = LAST_TRY.min(postfix_queue_lifetime / 2);
        let told = [deadline, postfix_time_limit, postfix_queue_lifetime, self.imap.settle, retry_for, last_try];
        let [told_deadline, time_limit, lifetime, settle, told_retry, before] = told.map(humantime::format_duration);
        if deadline.is_zero() {
            return wrong("delivery", "deadline", "a delivery needs time: the default is \"240s\"");
        }
        if deadline >= postfix_time_limit {
            let problem = format!(
                "{told_deadline} is not below delivery.postfix_time_limit ({time_limit}), at which Postfix kills the delivery \
                 and bounces the message"
            );
            return wrong("delivery", "deadline", &problem);
        }
        if self.imap.settle <= deadline {
            let problem = format!(
                "{settle} is not above delivery.deadline ({told_deadline}): until that has passed, the APPEND of an earlier \
                 attempt may still land"
            );
            return wrong("imap", "settle", &problem);
        }
        // What the recipient has got must not come back to the sender as undeliverable.
        if self.imap.settle > postfix_queue_lifetime / 4 {
            let problem = format!(
                "{settle} is more than a quarter of delivery.postfix_queue_lifetime ({lifetime}): of a message whose APPEND \
                 was not answered, Postfix may give up before anybody has looked for it, and bounce what was delivered"
            );
            return wrong("imap", "settle", &problem);
        }
        if retry_for > postfix_queue_lifetime.saturating_sub(last_try) {
            let problem = format!(
                "{told_retry} is not {before} below delivery.postfix_queue_lifetime ({lifetime}): Postfix may give up before \
                 the Sent copy does, and bounce what the recipient has got"
            );
            return wrong("sent", "retry_for", &problem);
        }
        if let Some((key, problem)) = self.retention.forgets_too_early(postfix_queue_lifetime + self.imap.settle) {
            return wrong("retention", key, &problem);
        }
        if let Some(problem) = self.retention.forgets_events_too_early(&self.notifications.retry) {
            return wrong("retention", "events_older_than", &problem);
        }
        if self.database.wait >= deadline {
            let wait = humantime::format_duration(self.database.wait);
            let problem = format!(
                "{wait} is not below delivery.deadline ({told_deadline}): nothing would be left for the delivery"
            );
            return wrong("database", "wait", &problem);
        }
        if let Some(wait) = self.lock.wait.filter(|wait| *wait >= deadline) {
            let wait = humantime::format_duration(wait);
            let problem = format!(
                "{wait} is not below delivery.deadline ({told_deadline}): nothing would be left for the delivery"
            );
            return wrong("lock", "wait", &problem);
        }
        if self.lock.namespace.is_empty() {
            return wrong("lock", "namespace", "it is empty: leave it out for \"maildrop\"");
        }
        if self.lock.namespace.ends_with(OF_PROGRAMS) {
            let problem = "a namespace that ends in \" exec\" belongs to `lock exec`: give it another end";
            return wrong("lock", "namespace", problem);
        }
        let delimits = |c: char| c.is_ascii_punctuation() && !matches!(c, '@' | '"' | '\\');
        if !self.routing.recipient_delimiter.chars().all(delimits) {
            let problem = "write what Postfix's recipient_delimiter says, such as \"+\" or \"+-\"; \"\" for none";
            return wrong("routing", "recipient_delimiter", problem);
        }
        for (at, domain) in self.routing.domain.iter().enumerate() {
            check_domain(domain, source)?;
            let name = fold(&domain.domain);
            if self.routing.domain.iter().take(at).any(|earlier| fold(&earlier.domain) == name) {
                let problem = format!("{:?} has a rule already, and only the first would count", domain.domain);
                return wrong("routing", "domain", &problem);
            }
        }
        if !login_names_the_user(self.imap.act_for_user, self.imap.login_user.as_deref())
            && let Some(rule) =
                self.routing.domain.iter().find(|rule| !leads_to_its_user_by_name(rule, self.sent.enabled))
        {
            let problem = format!(
                "with {} the login says of nobody whose mailbox it is for: everybody's mail for {} would go to one INBOX; say \
                 login_user = \"{{user}}*service\" or however your server wants it, or act_for_user = true",
                if self.imap.login_user.is_some() { "no {user} in it" } else { "none" },
                rule.domain
            );
            return wrong("imap", "login_user", &problem);
        }
        if self.sent.authserv_id.as_ref().is_some_and(|id| id.trim().is_empty()) {
            return wrong("sent", "authserv_id", "it is empty: leave it out, or name your filter's");
        }
        match (self.log.to, &self.log.file) {
            (LogTo::File, None) => wrong("log", "file", "it is missing: name the file to log to"),
            (LogTo::Syslog | LogTo::Journald, Some(_)) => {
                wrong("log", "file", "it is used only with to = \"file\": leave out one of them")
            }
            (LogTo::File, Some(file)) if !file.is_absolute() => wrong("log", "file", NOT_ABSOLUTE),
            _ => Ok(()),
        }
    }
}

fn check_domain(rule: &DomainRule, source: &Source<'_>) -> Result<(), ConfigError> {
    let error = |problem: String| Err(source.error(&["routing", "domain"], &problem));
    let DomainRule { domain, user, inbox, sent } = rule;
    if domain.is_empty() || domain.contains(['@', ' ']) || domain.ends_with('.') {
        return error(format!("name = {domain:?} is no domain: write \"example.com\""));
    }
    if !rule.has_known_placeholders() {
        return error(format!(
            "user = {user:?} of {domain}: only {{address}}, {{local}} and {{domain}} can stand in it"
        ));
    }
    if inbox.is_empty() || sent.is_empty() || one_name(inbox) == one_name(sent) {
        return error(format!("inbox and sent of {domain} have to be the names of two mailboxes"));
    }
    Ok(())
}

/// Whether the names of its mailboxes say whose they are. They are the same for the whole domain, so its user must be one.
fn leads_to_its_user_by_name(rule: &DomainRule, with_sent: bool) -> bool {
    let DomainRule { user, inbox, sent, .. } = rule;
    !user.contains('{') && is_named_after(inbox, user) && (!with_sent || is_named_after(sent, user))
}
