//! `check`: whether the notifier's own role in the database may do what a notifier does. A notifier that may not says so in its own
//! log alone.

use super::database;
use crate::base::deadline::Deadline;
use crate::config::{Config, Engine};
use crate::ledger::Finding;
use crate::ledger::check::{good, warning};
use crate::ledger::notifications::rights::missing_rights;
use crate::site::Site;

/// Connects as the notifier does, where there is to be one.
pub(super) fn look(config: &Config, deadline: Deadline) -> Option<Finding> {
    let settings = &config.notifications;
    if !settings.has_notifier() {
        return None;
    }
    let what = "notifier";
    let site = match config.of_notifier().and_then(Site::without_mailboxes) {
        Ok(site) => site,
        Err(error) => {
            // Whoever runs this may not be who the notifier runs as.
            let mend = "mend it, or run this as the service's user, who has to read it";
            return Some(warning(what, error.to_string(), mend));
        }
    };
    let missing = site.open_database(None, deadline).and_then(|mut database| missing_rights(database.as_mut()));
    let grants = match config.database.engine {
        Engine::Postgresql => "sql/postgres/grants-notify.sql",
        Engine::Mysql => "sql/mysql/grants-notify.sql",
    };
    Some(match missing {
        Ok(missing) if missing.is_empty() => good(what, "its role has enough rights"),
        Ok(missing) => {
            let mend = match &settings.config {
                Some(file) => format!("apply {grants} once more, for the role of {}", file.display()),
                None => format!("name a role of its own in notifications.config, which has what {grants} gives"),
            };
            warning(what, format!("its role lacks {}: subscribers are not told all", missing.join(", ")), mend)
        }
        // No delivery waits for it.
        Err(error) => {
            let Finding { found, mend, .. } = database::failed(what, &error);
            warning(what, found, mend.unwrap_or_default())
        }
    })
}
