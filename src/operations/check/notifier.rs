//! `check`: whether the notifier's own database role has the rights that it needs. A notifier without them reports that only in
//! its own log.

use super::database;
use crate::base::deadline::Deadline;
use crate::config::{Config, DatabaseRole, Engine};
use crate::ledger::Finding;
use crate::ledger::check::rights::missing_to_the_notifier;
use crate::ledger::check::{good, warning};
use crate::site::Site;

/// The finding from connecting as the notifier does; `None` if no notifier is configured.
pub(super) fn look(config: &Config, deadline: Deadline) -> Option<Finding> {
    if !config.notifications.has_notifier() {
        return None;
    }
    let what = "notifier";
    let site = match Site::without_mailboxes(config.clone().acting_as(DatabaseRole::Notifier)) {
        Ok(site) => site,
        Err(error) => {
            // The user who runs `check` may differ from the notifier's user.
            let fix = "fix it, or run this as the service's user, who has to read it";
            return Some(warning(what, error.to_string(), fix));
        }
    };
    let missing =
        site.open_database(None, deadline).and_then(|mut database| missing_to_the_notifier(database.as_mut()));
    let grants = match config.database.engine {
        Engine::Postgresql => "sql/postgres/grants-notify.sql",
        Engine::Mysql => "sql/mysql/grants-notify.sql",
    };
    Some(match missing {
        Ok(missing) if missing.is_empty() => good(what, "its role has enough rights"),
        Ok(missing) => {
            let fix = format!("apply {grants} once more, for the role of {}", DatabaseRole::Notifier.key());
            warning(what, format!("its role lacks {}: subscribers miss notifications", missing.join(", ")), fix)
        }
        // No delivery waits for the notifier, so a failure is only a warning.
        Err(error) => {
            let Finding { found, fix, .. } = database::failed(what, &error);
            warning(what, found, fix.unwrap_or_default())
        }
    })
}
