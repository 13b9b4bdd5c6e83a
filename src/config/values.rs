//! Values that TOML has no type for.

use crate::base::timestamp::LONGEST;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A duration: `"30s"`, `"5m"`, `"1d"`, `"1h 30m"`.
pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = Duration;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration, such as \"30s\", \"5m\" or \"1d\"")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            let duration = humantime::parse_duration(text).map_err(|error| {
                E::custom(format!("{text:?} is no duration, such as \"30s\", \"5m\" or \"1d\": {error}"))
            })?;
            if duration > LONGEST { Err(E::custom(format!("{text:?} is longer than a century"))) } else { Ok(duration) }
        }
    }
    deserializer.deserialize_str(Text)
}

/// A duration that may be left out.
pub(super) fn optional_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

/// Durations: `["5s", "5m"]`.
pub(super) fn durations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Duration>, D::Error> {
    #[derive(Deserialize)]
    struct One(#[serde(deserialize_with = "duration")] Duration);
    Ok(Vec::<One>::deserialize(deserializer)?.into_iter().map(|One(duration)| duration).collect())
}

/// The error for a relative path.
const NOT_ABSOLUTE: &str = "the path has to begin with /: pipe(8) runs us in Postfix's queue directory";

/// An absolute path: pipe(8) runs us in Postfix's queue directory, so a relative path would lead there.
pub(super) fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.is_absolute() { Ok(path) } else { Err(de::Error::custom(NOT_ABSOLUTE)) }
}

/// A path that may be left out.
pub(super) fn optional_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    path(deserializer).map(Some)
}

/// A size in bytes: `1000000`, `"1MB"`, `"1MiB"`.
pub(super) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Size;
    impl Visitor<'_> for Size {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size: a number of bytes, or \"10kB\", \"10MB\", \"10MiB\"")
        }
        fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<u64, E> {
            u64::try_from(bytes).map_err(|_| E::custom("a size cannot be negative"))
        }
        fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<u64, E> {
            Ok(bytes)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
            let no_size = || E::custom(format!("{text:?} is no size, such as \"10kB\", \"10MB\" or \"10MiB\""));
            let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let (number, unit) = text.split_at_checked(digits).ok_or_else(no_size)?;
            let factor = match unit.trim() {
                "" | "B" => 1,
                "kB" => 1_000,
                "MB" => 1_000_000,
                "GB" => 1_000_000_000,
                "KiB" => 1 << 10,
                "MiB" => 1 << 20,
                "GiB" => 1 << 30,
                _ => return Err(no_size()),
            };
            number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(no_size)
        }
    }
    deserializer.deserialize_any(Size)
}

/// A size that may be left out.
pub(super) fn optional_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    bytes(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Limit {
        #[serde(deserialize_with = "bytes")]
        limit: u64,
    }

    #[test]
    fn each_unit_of_a_size_has_its_factor() {
        let read = |text: &str| toml::from_str::<Limit>(&format!("limit = \"{text}\"")).ok().map(|it| it.limit);
        for (unit, factor) in [
            ("", 1),
            ("B", 1),
            ("kB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("KiB", 1_024),
            ("MiB", 1_048_576),
            ("GiB", 1_073_741_824),
        ] {
            assert_eq!(read(&format!("3 {unit}")), Some(3 * factor), "{unit}");
        }
        for none in ["", "MB", "1 mb", "1 TB", "-1", "1.5MB", "99999999999GB"] {
            assert_eq!(read(none), None, "{none}");
        }
    }
}
