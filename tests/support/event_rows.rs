//! The events of each copy, beside its row in the ledger.

use crate::support::database::Database;
use serde_json::Value;
use std::collections::BTreeMap;

/// The diffs of a copy, applied one after the other, give these columns of its row. (The reason for which a copy is
/// owed may change untold.)
const FIELDS: [&str; 3] = ["state", "uid_validity", "uid"];

/// Fails if a change of a copy has not exactly one event: each diff begins where the one before it has ended, changes
/// something, and the last one ends with what the copy's row says. Somebody has been subscribed since before the first
/// delivery, and nobody publishes.
#[track_caller]
pub fn each_change_was_reported_once(database: &mut Database) {
    let (hex, diff) = if database.engine.is_postgres() {
        ("encode(copy_key, 'hex')", "diff::text")
    } else {
        ("LOWER(HEX(copy_key))", "CAST(diff AS char)")
    };
    // Each by itself: MariaDB puts no columns of such collations together.
    let mut columns = |columns: [&str; 3], from: &str| -> Vec<[String; 3]> {
        let [keys, second, third] = columns.map(|column| database.texts(&format!("SELECT {column} FROM {from}")));
        keys.into_iter().zip(second).zip(third).map(|((key, second), third)| [key, second, third]).collect()
    };
    let shown = columns([hex, "CONCAT(type, '')", diff], "outbox ORDER BY position");
    let placement = "CONCAT(COALESCE(uid_validity, -1), ' ', COALESCE(uid, -1))";
    let rows = columns([hex, "CONCAT(state, '')", placement], "copies ORDER BY copy_key");
    let mut folded: BTreeMap<String, [Value; 3]> = BTreeMap::new();
    for event in &shown {
        let [key, kind, diff] = event.each_ref().map(String::as_str);
        // A copy that was refused or deferred has no row; one that was taken out lay beside the one that has.
        if matches!(kind, "message.refused" | "message.deferred" | "copy.removed") {
            continue;
        }
        let diff: Value = serde_json::from_str(diff).unwrap();
        let copy = folded.entry(key.to_owned()).or_default();
        let mut changed = 0;
        for (field, is) in FIELDS.iter().zip(copy) {
            let Some(change) = diff.get(field) else { continue };
            assert!(change["---"] == *is && change["+++"] != *is, "{event:?}: it was {is}");
            *is = change["+++"].clone();
            changed += 1;
        }
        assert!(changed > 0, "{event:?}: nothing has changed");
    }
    let number = |text: &str| text.parse::<u32>().map_or(Value::Null, Value::from);
    let row = |[key, state, placement]: &[String; 3]| {
        let (uid_validity, uid) = placement.split_once(' ').unwrap();
        (key.clone(), [state.as_str().into(), number(uid_validity), number(uid)])
    };
    let rows: BTreeMap<String, [Value; 3]> = rows.iter().map(row).collect();
    assert!(!rows.is_empty(), "nothing was delivered");
    assert_eq!(folded, rows);
}
