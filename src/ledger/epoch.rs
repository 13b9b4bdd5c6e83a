//! The epochs of a database: as long as one lasts, it remembers what it was told.
//!
//! After a fail-over that forgot commits, or a restore from a backup, the ledger does not know what was delivered last. Both make
//! another epoch: its name is made by the server, of what such an event changes. The table `epochs` has a row for each, from when
//! on it was seen, by the database's clock; the last one is compared with the server's present one under the lock, in the round trip
//! of the look. Whoever finds another one writes the next row, and commits it, before it delivers.
//!
//! The first row of all says nothing of when it began: until then nothing was forgotten that a ledger could have known.

use crate::database::columns_of;
use std::time::Duration;

/// The present epoch, and the last one that is written down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Epoch {
    /// Its name; `None` where the server does not tell, or has none.
    pub present: Option<String>,
    /// The one of the table's last row; `None` where there is none.
    pub last: Option<String>,
    /// How many seconds ago that one began, by the database's clock; `None` of the first.
    pub age: Option<f64>,
}

columns_of! { Epoch: present, last, age }

impl Epoch {
    /// Whether it is still to be written down.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.present.is_some() && self.present != self.last
    }

    /// How long ago the database may have forgotten what was delivered until then; `None`: nothing that anybody knows of.
    #[must_use]
    pub fn began(&self) -> Option<Duration> {
        if self.present.is_none() || self.last.is_none() {
            return None;
        }
        if self.present != self.last {
            return Some(Duration::ZERO);
        }
        // Negative where that clock was set back.
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
            // None is told.
            (epoch("", "", None), false, None),
            (epoch("", "a", Some(5.0)), false, None),
            // The first one.
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
