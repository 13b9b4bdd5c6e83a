//! The day of a Date field. The keys of the ledger begin with it.
//!
//! Keys of one day are then close together in the databases' indexes, and new keys are added at the end. The day depends on
//! the message alone and on no clock, because it must be the same for each copy, on each host, in each year.
//!
//! So only the forms of RFC 5322 sections 3.3 and 4.3 are read. What else date libraries accept changes with their versions.
//!
//! The results must never change, because ledgers store keys that begin with them. The tests pin them.

use time::{Date, Month};

/// The Julian day of 1970-01-01.
const EPOCH: i32 = 2_440_588;
/// 1990-01-01 and 2100-12-31, in days since 1970-01-01. A message outside of this range comes from a host with a wrong clock.
const FIRST: i64 = 7_305;
const LAST: i64 = 47_846;

/// The UTC day of a Date field's value, in days since 1970-01-01; 0 if it cannot be read, or lies before 1990 or after 2100.
///
/// Two-digit years mean 1950 to 2049, and three-digit years count from 1900. Alphabetic zones are those of the USA, and any other
/// is UTC (RFC 5322 section 4.3). The zone is required. The seconds and the name of the day are optional, and the name is not
/// compared.
pub(super) fn of_value(value: impl IntoIterator<Item = u8>) -> u32 {
    // A store may have changed bytes beyond ASCII, so they are read in that form.
    let mut tokens = Tokens { bytes: value.into_iter().map(super::identity::as_stored).peekable() };
    let day = read(&mut tokens).map(|(minutes, _)| minutes.div_euclid(1440)).filter(|day| (FIRST..=LAST).contains(day));
    day.and_then(|day| u32::try_from(day).ok()).unwrap_or(0)
}

/// The moment after the last semicolon of a Received field's value (RFC 5321 section 4.4), in seconds since 1970, if it can be
/// read.
pub(super) fn of_received(value: &[u8]) -> Option<i64> {
    let at = memchr::memrchr(b';', value)?;
    moment(value.get(at + 1..)?.iter().copied())
}

/// The moment of a Date field's value, in seconds since 1970, if it can be read.
pub(super) fn moment(value: impl IntoIterator<Item = u8>) -> Option<i64> {
    let (minutes, seconds) = read(&mut Tokens { bytes: value.into_iter().peekable() })?;
    Some(minutes * 60 + i64::from(seconds))
}

/// The minutes since 1970, and the seconds of the last minute.
fn read(tokens: &mut Tokens<impl Iterator<Item = u8>>) -> Option<(i64, u32)> {
    let mut token = tokens.next()?;
    if let Token::Word(_) = token {
        token = tokens.next()?;
        if token == Token::Sign(b',') {
            token = tokens.next()?;
        }
    }
    let Token::Number { value: day, digits: 1..=2 } = token else { return None };
    let Token::Word(month) = tokens.next()? else { return None };
    let Token::Number { value: year, digits: year_digits } = tokens.next()? else { return None };
    let hour = tokens.number(23)?;
    if tokens.next()? != Token::Sign(b':') {
        return None;
    }
    let minute = tokens.number(59)?;
    let (mut token, mut seconds) = (tokens.next()?, 0);
    if token == Token::Sign(b':') {
        // A leap second belongs to the same day.
        seconds = tokens.number(60)?;
        token = tokens.next()?;
    }
    let offset = zone(token, tokens)?;
    if tokens.next().is_some() {
        return None;
    }
    let year = match year_digits {
        2 if year < 50 => year + 2000,
        2 | 3 => year + 1900,
        4.. => year,
        _ => return None,
    };
    let date = Date::from_calendar_date(i32::try_from(year).ok()?, month_of(month)?, u8::try_from(day).ok()?).ok()?;
    let minutes = i64::from(date.to_julian_day() - EPOCH) * 1440 + i64::from(hour * 60 + minute) - offset;
    Some((minutes, seconds))
}

/// The offset of the zone east of UTC, in minutes.
fn zone(first: Token, tokens: &mut Tokens<impl Iterator<Item = u8>>) -> Option<i64> {
    match first {
        Token::Sign(sign @ (b'+' | b'-')) => {
            let Some(Token::Number { value, digits: 4 }) = tokens.next() else { return None };
            let (hours, minutes) = (value / 100, value % 100);
            let offset = i64::from(hours * 60 + minutes);
            (minutes < 60).then_some(if sign == b'-' { -offset } else { offset })
        }
        Token::Word(name) => Some(match &name {
            b"edt" => -4 * 60,
            b"est" | b"cdt" => -5 * 60,
            b"cst" | b"mdt" => -6 * 60,
            b"mst" | b"pdt" => -7 * 60,
            b"pst" => -8 * 60,
            _ => 0,
        }),
        Token::Sign(_) | Token::Number { .. } => None,
    }
}

fn month_of(name: [u8; 3]) -> Option<Month> {
    use Month::{April, August, December, February, January, July, June, March, May, November, October, September};
    Some(match &name {
        b"jan" => January,
        b"feb" => February,
        b"mar" => March,
        b"apr" => April,
        b"may" => May,
        b"jun" => June,
        b"jul" => July,
        b"aug" => August,
        b"sep" => September,
        b"oct" => October,
        b"nov" => November,
        b"dec" => December,
        _ => return None,
    })
}

/// The elements of a date. Comments and white space may be anywhere between them (section 4.3) and are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// A run of digits: their value, at most a million, and their number.
    Number { value: u32, digits: usize },
    /// A run of letters, in lower case; zeros if it has fewer or more than three.
    Word([u8; 3]),
    /// Any other byte.
    Sign(u8),
}

struct Tokens<I: Iterator<Item = u8>> {
    bytes: std::iter::Peekable<I>,
}

impl<I: Iterator<Item = u8>> Tokens<I> {
    /// The next token, if it is a number of one or two digits and not above `most`.
    fn number(&mut self, most: u32) -> Option<u32> {
        match self.next()? {
            Token::Number { value, digits: 1..=2 } => Some(value).filter(|value| *value <= most),
            _ => None,
        }
    }

    /// Skips the rest of a comment; comments nest, and a backslash quotes (section 3.2.2).
    fn comment(&mut self) {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.bytes.next() {
                None => return,
                Some(b'\\') => _ = self.bytes.next(),
                Some(b'(') => depth += 1,
                Some(b')') => depth -= 1,
                Some(_) => {}
            }
        }
    }
}

impl<I: Iterator<Item = u8>> Iterator for Tokens<I> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        loop {
            match self.bytes.next()? {
                b'(' => self.comment(),
                // Fields as shown to people have no control characters, so these are skipped.
                b' ' | 0..=31 | 127 => {}
                digit @ b'0'..=b'9' => {
                    let (mut value, mut digits) = (u32::from(digit - b'0'), 1_usize);
                    while let Some(digit) = self.bytes.next_if(u8::is_ascii_digit) {
                        value = (value * 10 + u32::from(digit - b'0')).min(1_000_000);
                        digits += 1;
                    }
                    return Some(Token::Number { value, digits });
                }
                letter @ (b'a'..=b'z' | b'A'..=b'Z') => {
                    let mut word = [letter.to_ascii_lowercase(), 0, 0];
                    let mut length = 1_usize;
                    while let Some(letter) = self.bytes.next_if(u8::is_ascii_alphabetic) {
                        match word.get_mut(length) {
                            Some(place) => *place = letter.to_ascii_lowercase(),
                            None => word = [0; 3],
                        }
                        length += 1;
                    }
                    return Some(Token::Word(if length == 3 { word } else { [0; 3] }));
                }
                other => return Some(Token::Sign(other)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 23rd of November 2026.
    const DAY: u32 = 20_780;

    #[test]
    fn the_day_is_that_of_utc() {
        for (value, day) in [
            ("Mon, 23 Nov 2026 04:51:22 +0000", DAY),
            ("23 Nov 2026 04:51:22 +0000", DAY),
            ("Mon, 23 Nov 2026 04:51 -0000", DAY),
            ("Mon, 23 Nov 2026 01:59:59 +0200", DAY - 1),
            ("Mon, 23 Nov 2026 02:00:00 +0200", DAY),
            ("Sun, 22 Nov 2026 23:59:60 -0000", DAY - 1),
            ("Sun, 22 Nov 2026 18:30:00 -0530", DAY),
            ("Sun, 22 Nov 2026 18:29:59 -0530", DAY - 1),
            ("Mon, 23 Nov 2026 00:00:00 -9959", DAY + 4),
            ("Thu, 1 Jan 1970 00:00:00 +0000", 0),
            ("Sun, 31 Dec 1989 23:59:59 +0000", 0),
            ("Mon, 1 Jan 1990 00:00:00 +0000", 7_305),
            ("Mon, 1 Jan 1990 00:00:00 +0001", 0),
            ("Tue, 29 Feb 2000 12:00:00 +0000", 11_016),
            ("Fri, 31 Dec 2100 23:59:59 +0000", 47_846),
            ("Fri, 31 Dec 2100 23:59:59 -0001", 0),
            ("Sat, 1 Jan 2101 00:00:00 +0000", 0),
        ] {
            assert_eq!(of_value(value.bytes()), day, "{value}");
        }
    }

    /// RFC 5322 section 4.3, and appendices A.5 and A.6.
    #[test]
    fn obsolete_dates_are_read() {
        for (value, day) in [
            (
                "Thu,\r\n      13\r\n        Feb\r\n          1969\r\n      23:32\r\n               -0330 (Newfoundland Time)",
                0,
            ),
            ("Thu, 13 Feb 1997 23:32 -0330 (Newfoundland Time)", 9_906),
            ("21 Nov 97 09:55:06 GMT", 10_186),
            ("Fri, 21 Nov 1997 09(comment):   55  :  06 -0600", 10_186),
            ("mon , 23 NOV 26 23 : 59 : 59 (a (nested \\) one) here) uT", DAY),
            ("Mon 23 Nov 2026 04:51:22 +0000", DAY),
            ("Monday, 23 Nov 2026 4:51:22 +0000", DAY),
            ("Mon, 23 Nov 2026 19:59 EDT", DAY),
            ("Mon, 23 Nov 2026 20:00 EDT", DAY + 1),
            ("Mon, 23 Nov 2026 18:59 EST", DAY),
            ("Mon, 23 Nov 2026 19:00 CDT", DAY + 1),
            ("Mon, 23 Nov 2026 18:00 CST", DAY + 1),
            ("Mon, 23 Nov 2026 17:59 MDT", DAY),
            ("Mon, 23 Nov 2026 17:00 MST", DAY + 1),
            ("Mon, 23 Nov 2026 16:59 PDT", DAY),
            ("Mon, 23 Nov 2026 16:00 PST", DAY + 1),
            // Any other is UTC. So are the military zones, whose signs were defined the wrong way round.
            ("Mon, 23 Nov 2026 23:59 A", DAY),
            ("Mon, 23 Nov 2026 23:59 CEST", DAY),
            ("23 Nov 00 12:00 +0000", 11_284),
            ("23 Nov 49 12:00 +0000", 29_181),
            ("23 Nov 50 12:00 +0000", 0),
            ("23 Nov 99 12:00 +0000", 10_918),
            ("23 Nov 126 12:00 +0000", DAY),
            ("23 Nov 02026 12:00 +0000", DAY),
            ("M\u{f6}n, 23 Nov 2026 04:51:22 +0000", DAY),
            ("MXn, 23 Nov 2026 04:51:22 +0000 (\u{20ac})", DAY),
            // An unclosed comment extends to the end.
            ("Mon, 23 Nov 2026 04:51:22 +0000 (CET", DAY),
        ] {
            assert_eq!(of_value(value.bytes()), day, "{value}");
        }
    }

    #[test]
    fn a_message_came_when_its_received_field_says_at_its_end() {
        let at = |second: i64| Some(i64::from(DAY) * 86_400 + second);
        for (value, moment) in [
            // As Postfix 3.10 writes it.
            (
                " from mail.example.com (mail.example.com [192.0.2.1])\r\n\tby mx1.axial.net (Postfix) with ESMTPS id 4abc\r\n\
                 \tfor <doug@axial.net>; Mon, 23 Nov 2026 04:51:22 +0000 (UTC)\r\n",
                at(17_482),
            ),
            (" by mx1 (Postfix, from userid 0) id 4; Mon, 23 Nov 2026 05:51:22 +0100 (CET)", at(17_482)),
            ("; 23 Nov 2026 04:51 +0000", at(17_460)),
            ("; Mon, 23 Nov 2026 00:00:01 +0100", at(-3_599)),
            (" from a;Fri, 1 Jan 2100 00:00:00 +0000 by b; Mon, 23 Nov 2026 00:00:00 +0000", at(0)),
            ("; Thu, 1 Jan 1970 00:00:09 +0000", Some(9)),
            (" from a by b", None),
            (" Mon, 23 Nov 2026 04:51:22 +0000", None),
            ("; Mon, 23 Nov 2026 04:51:22", None),
            ("; Mon, 23 Nov 2026 04:51:22 +0000 (a; b)", None),
            ("; yesterday", None),
            (";", None),
            ("", None),
        ] {
            assert_eq!(of_received(value.as_bytes()), moment, "{value}");
        }
    }

    #[test]
    fn each_month_is_known_and_a_moment_has_the_day_of_its_date() {
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let first = months.map(|month| of_value(format!("1 {month} 2026 12:00 +0000").bytes()));
        let lengths: Vec<u32> = first.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(lengths, [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30]);
    }

    #[test]
    fn what_is_no_date_has_day_0() {
        for value in [
            "",
            "()",
            "yesterday",
            "2026-11-23T04:51:22Z",
            "Mon Nov 23 04:51:22 2026",
            "Mon, 23 Nov 2026",
            "Mon, 23 Nov 2026 04:51:22",
            "Mon, 23 Nov 2026 04:51:22 +00",
            "Mon, 23 Nov 2026 04:51:22 +0060",
            "Mon, 23 Nov 2026 04:51:22 +0000 UTC",
            "Mon, 23 Nov 2026 04:51:22 ++0000",
            "Mon, 23 Nov 2026 24:00:00 +0000",
            "Mon, 23 Nov 2026 23:60:00 +0000",
            "Mon, 23 Nov 2026 23:59:61 +0000",
            "Mon, 23 Nov 2026 04.51.22 +0000",
            "Mon, 31 Nov 2026 04:51:22 +0000",
            "Thu, 29 Feb 2100 04:51:22 +0000",
            "Mon, 0 Nov 2026 04:51:22 +0000",
            "Mon, 023 Nov 2026 04:51:22 +0000",
            "Mon, 23 November 2026 04:51:22 +0000",
            "Mon, 23 No 2026 04:51:22 +0000",
            "Mon, 23-Nov-2026 04:51:22 +0000",
            "Mon,, 23 Nov 2026 04:51:22 +0000",
            "Mon, 23 Nov 6 04:51:22 +0000",
            "Mon, 23 Nov 99999999999999999999 04:51:22 +0000",
        ] {
            assert_eq!(of_value(value.bytes()), 0, "{value}");
        }
    }
}
