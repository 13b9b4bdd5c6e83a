//! The duration of an attempt's stages, as the ledger stores it: `{"connect":1.27,"lock":0.31}`, in milliseconds.

use crate::database::{Columns, DatabaseError, FromRow};
use serde::ser::{SerializeMap, Serializer};
use std::collections::BTreeMap;

/// The stages of a delivery, in their order.
pub(crate) const STAGES: [&str; 9] =
    ["connect", "route", "authenticate", "position", "journal", "lock", "look", "append", "record"];

/// The stages that this release knows, in their order, with their milliseconds. A measurement that cannot be parsed
/// counts as none.
pub(crate) fn read(json: &str) -> Vec<(&'static str, f64)> {
    let read: BTreeMap<String, f64> = serde_json::from_str(json).unwrap_or_default();
    STAGES.into_iter().filter_map(|name| read.get(name).map(|took| (name, *took))).collect()
}

impl FromRow for Vec<(&'static str, f64)> {
    /// Empty for an attempt that has not ended.
    fn from_row(columns: &mut Columns<'_>) -> Result<Self, DatabaseError> {
        Ok(columns.read::<Option<String>>()?.map(|json| read(&json)).unwrap_or_default())
    }
}

/// Serializes them as an object, for programs.
pub(super) fn serialize<S: Serializer>(stages: &[(&'static str, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(stages.len()))?;
    for (name, took) in stages {
        map.serialize_entry(name, took)?;
    }
    map.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_come_in_their_own_order_whatever_the_database_made_of_it() {
        let read_back = read(r#"{"append": 3, "lock": 0.31, "connect": 1.27, "new": 1}"#);
        let names: Vec<String> = read_back.iter().map(|(name, took)| format!("{name} {took}")).collect();
        assert_eq!(names, ["connect 1.27", "lock 0.31", "append 3"]);
        assert!(read("nonsense").is_empty());
        let stages = ["connect", "route", "authenticate", "position", "journal", "lock", "look", "append", "record"];
        let all: BTreeMap<&str, f64> = stages.into_iter().zip((1..).map(f64::from)).collect();
        let all = read(&serde_json::to_string(&all).unwrap());
        assert_eq!(all, stages.into_iter().zip((1..).map(f64::from)).collect::<Vec<_>>());
    }
}
