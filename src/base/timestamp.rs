//! Moments as people write and read them. They are in UTC and marked so, since hosts and databases differ in their time zones.

use serde::{Serialize, Serializer};
use time::format_description::BorrowedFormatItem;
use time::format_description::well_known::Rfc3339;
use time::formatting::Formattable;
use time::macros::format_description;
use time::{Date, Duration, OffsetDateTime};

const WHOLE_SECONDS: &[BorrowedFormatItem<'_>] = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]Z");
const DAY: &[BorrowedFormatItem<'_>] = format_description!("[year]-[month]-[day]");

/// A century: any moment of our time can be this much later.
pub(crate) const LONGEST: std::time::Duration = std::time::Duration::from_hours(24 * 36_500);

/// Reads `30s`, `5m`, `1h 30m`, or a bare number of seconds.
pub(crate) fn duration(text: &str) -> Result<std::time::Duration, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(std::time::Duration::from_secs(u64::from(seconds)));
    }
    let duration = humantime::parse_duration(text).map_err(|_| "write it like 30s, 5m or 1h")?;
    if duration > LONGEST { Err("that is longer than a century".into()) } else { Ok(duration) }
}

/// Reads `2d` or `90m` (that long ago), `2026-11-20` (the beginning of that day) or `2026-11-20T03:00:00Z`, as microseconds
/// since 1970.
pub(crate) fn since(text: &str) -> Result<i64, String> {
    let ago = duration(text).ok().and_then(|ago| Duration::try_from(ago).ok());
    let moment = ago
        .and_then(|ago| OffsetDateTime::now_utc().checked_sub(ago))
        .or_else(|| Date::parse(text, DAY).ok().map(|day| day.midnight().assume_utc()))
        .or_else(|| OffsetDateTime::parse(&text.replacen(' ', "T", 1), &Rfc3339).ok())
        .ok_or("write it like 2d or 90m (ago), 2026-11-20, or 2026-11-20T03:00:00Z")?;
    microseconds(moment).ok_or_else(|| "that is too far away".into())
}

/// The present moment, in microseconds since 1970.
pub fn now() -> i64 {
    microseconds(OffsetDateTime::now_utc()).unwrap_or(i64::MAX)
}

fn microseconds(moment: OffsetDateTime) -> Option<i64> {
    i64::try_from(moment.unix_timestamp_nanos() / 1000).ok()
}

/// `2026-11-20 03:00:00Z`.
pub(crate) fn time_text(microseconds: i64) -> String {
    formatted(microseconds, WHOLE_SECONDS)
}

fn formatted(microseconds: i64, format: &(impl Formattable + ?Sized)) -> String {
    let moment = OffsetDateTime::from_unix_timestamp_nanos(i128::from(microseconds) * 1000).ok();
    moment.and_then(|moment| moment.format(format).ok()).unwrap_or_else(|| microseconds.to_string())
}

/// A span of time for people: `5d 10m`, `59s`, `0.2s`.
pub(crate) fn span(span: std::time::Duration) -> String {
    let seconds = span.as_secs();
    let parts = [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let parts: Vec<String> =
        parts.iter().filter(|(number, _)| *number > 0).map(|(number, unit)| format!("{number}{unit}")).collect();
    if parts.is_empty() { format!("{:.1}s", span.as_secs_f64()) } else { parts.join(" ") }
}

/// Milliseconds for people: `28 ms`, `4.2 s`.
pub(crate) fn milliseconds(took: f64) -> String {
    if took < 10.0 {
        format!("{took:.1} ms")
    } else if took < 1000.0 {
        format!("{took:.0} ms")
    } else if took < 60_000.0 {
        format!("{:.1} s", took / 1000.0)
    } else {
        span(std::time::Duration::from_secs_f64(took / 1000.0))
    }
}

/// RFC 3339 with microseconds, for programs.
pub(crate) fn exact(microseconds: i64) -> String {
    formatted(microseconds, &Rfc3339)
}

/// Reads what [`exact`] has written, as microseconds since 1970.
pub(crate) fn read_exact(text: &str) -> Option<i64> {
    OffsetDateTime::parse(text, &Rfc3339).ok().and_then(microseconds)
}

/// Serializes a moment as [`exact`] writes it, for programs.
pub(crate) fn serialize<S: Serializer>(microseconds: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&exact(*microseconds))
}

pub(crate) fn serialize_optional<S: Serializer>(moment: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    moment.map(exact).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_moments_in_several_ways() {
        assert_eq!(since("2026-11-20"), since("2026-11-20T00:00:00Z"));
        assert_eq!(since("2026-11-20 03:00:00Z").map(time_text), Ok("2026-11-20 03:00:00Z".into()));
        assert_eq!(since("1970-01-01T01:00:00.5+01:00"), Ok(500_000));
        let (hour, now) = (since("1h").unwrap(), since("0").unwrap());
        assert!((3_599_000_000..3_660_000_000).contains(&(now - hour)));
        assert!(since("yesterday").unwrap_err().contains("2026-11-20"));
    }

    #[test]
    fn programs_read_them_to_the_microsecond() {
        assert_eq!(exact(1_500_000), "1970-01-01T00:00:01.5Z");
        assert_eq!(time_text(i64::MAX), i64::MAX.to_string());
        assert_eq!((read_exact("1970-01-01T00:00:01.5Z"), read_exact("2d")), (Some(1_500_000), None));
    }

    #[test]
    fn spans_are_reported_in_their_own_units() {
        let shown = |seconds| span(std::time::Duration::from_secs_f64(seconds));
        assert_eq!((shown(0.25), shown(59.9), shown(3600.0)), ("0.2s".into(), "59s".into(), "1h".into()));
        assert_eq!((shown(432_600.0), shown(34_560_000.0)), ("5d 10m".into(), "400d".into()));
    }

    #[test]
    fn milliseconds_are_reported_in_three_digits_or_so() {
        for (took, text) in [
            (0.04, "0.0 ms"),
            (9.94, "9.9 ms"),
            (10.0, "10 ms"),
            (999.4, "999 ms"),
            (1000.0, "1.0 s"),
            (4230.0, "4.2 s"),
            (59_940.0, "59.9 s"),
            (60_000.0, "1m"),
            (3_661_000.0, "1h 1m 1s"),
        ] {
            assert_eq!(milliseconds(took), text);
        }
    }

    #[test]
    fn a_century_is_the_longest_span() {
        assert_eq!(duration("36500days"), Ok(LONGEST));
        assert!(duration("36500days 1s").unwrap_err().contains("century"));
        assert_eq!(
            (duration("90"), duration("1h 30m")),
            (Ok(std::time::Duration::from_secs(90)), Ok(std::time::Duration::from_mins(90)))
        );
        assert!(duration("soon").unwrap_err().contains("30s"));
    }

    #[test]
    fn programs_are_reported_a_moment_or_that_there_is_none() {
        #[derive(Serialize)]
        struct Moments(
            #[serde(serialize_with = "serialize")] i64,
            #[serde(serialize_with = "serialize_optional")] Option<i64>,
        );
        let json = |other| serde_json::to_string(&Moments(1_500_000, other)).unwrap();
        assert_eq!(json(Some(0)), r#"["1970-01-01T00:00:01.5Z","1970-01-01T00:00:00Z"]"#);
        assert_eq!(json(None), r#"["1970-01-01T00:00:01.5Z",null]"#);
    }
}
