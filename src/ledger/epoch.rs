//! The epochs of a database: within an epoch, it has lost no commit.
//!
//! After a fail-over that lost commits, or a restore from a backup, the ledger does not know the last deliveries. Both start
//! another epoch: the server derives its name from values that such an event changes.
//!
//! The table `epochs` has a row for each epoch, with the time at which it was first seen, by the database's clock. Under the
//! lock, in the round trip of the look, a delivery compares the last row with the server's present epoch. A delivery that finds
//! another epoch inserts the next row, and commits it, before it delivers.
//!
//! The first row has no time: the ledger is not older than it, so nothing could be lost before it.

use crate::database::columns_of;
use std::time::Duration;

/// The present epoch, and the last recorded one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Epoch {
    /// The name of the present epoch; `None` if the server does not report it, or has none.
    pub present: Option<String>,
    /// The epoch of the table's last row; `None` if there is none.
    pub last: Option<String>,
    /// How many seconds ago the last epoch began, by the database's clock; `None` for the first.
    pub age: Option<f64>,
}

columns_of! { Epoch: present, last, age }

impl Epoch {
    /// Whether the present epoch has no row yet.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.present.is_some() && self.present != self.last
    }

    /// How long ago the present epoch began: the database may have lost deliveries before that. `None`: no loss is known.
    #[must_use]
    pub fn began(&self) -> Option<Duration> {
        if self.present.is_none() || self.last.is_none() {
            return None;
        }
        if self.present != self.last {
            return Some(Duration::ZERO);
        }
        // The age is negative if that clock was set back.
        self.age.map(|age| Duration::try_from_secs_f64(age).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_began_when_the_table_says_so_or_just_now() {
        let epoch = |present: &str, last: &str, age| Epoch {
            present: Some(present.to_owned()).filter(|name| !name.is_empty()),
            last: Some(last.to_owned()).filter(|name| !name.is_empty()),
            age,
        };
        for (epoch, unwritten, began) in [
            // The server reports no epoch.
            (epoch("", "", None), false, None),
            (epoch("", "a", Some(5.0)), false, None),
            // The first epoch.
            (epoch("a", "", None), true, None),
            (epoch("a", "a", None), false, None),
            (epoch("b", "a", None), true, Some(0)),
            (epoch("b", "a", Some(77.0)), true, Some(0)),
            (epoch("b", "b", Some(77.0)), false, Some(77)),
            (epoch("b", "b", Some(-3.0)), false, Some(0)),
        ] {
            assert_eq!(epoch.is_unwritten(), unwritten, "{epoch:?}");
            assert_eq!(epoch.began(), began.map(Duration::from_secs), "{epoch:?}");
        }
    }
}
