//! Moments in files of ours, as people read them: in microseconds since 1970 where we count with them.

use crate::base::timestamp;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(moment: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    timestamp::serialize(moment, serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let text = String::deserialize(deserializer)?;
    timestamp::read_exact(&text).ok_or_else(|| serde::de::Error::custom("it is no moment"))
}

/// The same, where there may be none.
pub(super) mod optional {
    use crate::base::timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::queue) fn serialize<S: Serializer>(moment: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
        timestamp::serialize_optional(moment, serializer)
    }

    pub(in crate::queue) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
        let read =
            |text: String| timestamp::read_exact(&text).ok_or_else(|| serde::de::Error::custom("it is no moment"));
        Option::<String>::deserialize(deserializer)?.map(read).transpose()
    }
}
