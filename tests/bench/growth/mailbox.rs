//! Into mailboxes of more and more messages.

use super::curve::{Beyond, FLAT, in_turns, verdict};
use super::fixture::{Fixture, clear, mail_program};
use crate::figures::{Report, Series, WARM_UP, milliseconds};
use crate::floor::Calls;
use crate::site::{SIZE, STRANGER, Site, message, with_crlf};
use crate::support::another_version_may_stand_in;
use crate::support::database::Engine;
use crate::support::imap_server::somebody;
use crate::{plot, process};
use std::thread;

/// At most so many are copied by one command: a client waits for its answer.
const AT_ONCE: usize = 2000;

/// A mailbox, filled; as users of the test Dovecot are called, so is their format.
pub struct Full {
    format: &'static str,
    messages: usize,
    user: String,
}

/// Mailboxes of 100 messages to 10 to the power of `last`, in each format.
pub fn fill(report: &Report, last: u32) -> Vec<Full> {
    // A Dovecot before 2.4 keeps all of them as Maildir.
    let formats: &[_] = if another_version_may_stand_in() { &["Maildir"] } else { &["Maildir", "sdbox"] };
    let full =
        |format| move |power| Full { format, messages: 10_usize.pow(power), user: somebody(&format.to_lowercase()) };
    let all: Vec<Full> = formats.iter().flat_map(|format| (2..=last).map(full(format))).collect();
    thread::scope(|scope| {
        for format in formats {
            let all = &all;
            scope.spawn(move || {
                for full in all.iter().filter(|full| full.format == *format) {
                    report.progress(format!("growth: {} messages into {format}", full.messages));
                    full.fill();
                }
            });
        }
    });
    all
}

impl Full {
    fn fill(&self) {
        let mut imap = mail_program(&self.user);
        let mut there = self.messages.min(30);
        for _ in 0..there {
            let message = with_crlf(&message(STRANGER, 2000));
            imap.run(&format!(
                "APPEND INBOX (\\Seen) {{{}+}}\r\n{}",
                message.len(),
                String::from_utf8(message).unwrap()
            ))
            .unwrap();
        }
        imap.run("SELECT INBOX").unwrap();
        while there < self.messages {
            let more = there.min(self.messages - there).min(AT_ONCE);
            imap.run(&format!("COPY 1:{more} INBOX")).unwrap();
            imap.run("NOOP").unwrap();
            there += more;
        }
    }
}

pub fn measure(report: &mut Report, site: &Site, runs: usize, all: &[Full]) {
    let fixture = Fixture::new(Engine::Postgres17, all.iter().map(|full| &full.user));
    report.progress(format!("growth: {runs} times into each of {} mailboxes", all.len()));
    let append = |calls, user: &str| {
        let message = with_crlf(&message(STRANGER, SIZE));
        milliseconds(process::run(&mut site.floor(calls, user), &message).took)
    };
    let measured = in_turns(WARM_UP, runs, all, |full| {
        let delivery = milliseconds(fixture.deliver(&full.user).took);
        [delivery, append(Calls::Append, &full.user), append(Calls::StatusAppend, &full.user)]
    });
    report.line(format!(
        "### The mailbox\n\nA delivery, and a bare client in a process of its own that connects, logs in and appends. All of \
         them add a message, so that each mailbox ends with {} more than it says.",
        (WARM_UP + runs) * 3
    ));
    let mut curves = Vec::new();
    for (format, names) in
        [("Maildir", ["delivery, Maildir", "APPEND, Maildir"]), ("sdbox", ["delivery, sdbox", "APPEND, sdbox"])]
    {
        let of_it = all.iter().zip(&measured).filter(|(full, _)| full.format == format);
        let curve: Vec<_> = of_it.map(|(full, series)| (full.messages, series)).collect();
        if curve.is_empty() {
            continue;
        }
        tell(report, format, &curve);
        for (name, column) in names.into_iter().zip(0..) {
            curves.push((name, curve.iter().map(|(x, series)| (*x as f64, series[column].median())).collect()));
        }
    }
    report.plot("mailbox", "The mailbox", plot::curves("One delivery", "messages in the mailbox", "ms", &curves));
    report.progress("growth: emptying the mailboxes");
    clear(all.iter().map(|full| &full.user));
}

/// One format's curve: how many messages; a delivery, a bare APPEND, the same with a STATUS before it.
fn tell(report: &mut Report, format: &str, curve: &[(usize, &[Series; 3])]) {
    let [(few, first), (many, last)] = [curve[0], curve[curve.len() - 1]];
    let beyond = |here: &[Series; 3], base: usize| Beyond::of((&first[0], &first[base]), (&here[0], &here[base]));
    let rows: Vec<[String; 6]> = curve
        .iter()
        .map(|(messages, series)| {
            let [delivery, append, status] = series.each_ref().map(Series::to_string);
            let [beyond_append, beyond_status] = [1, 2].map(|base| beyond(series, base).to_string());
            [messages.to_string(), delivery, append, status, beyond_append, beyond_status]
        })
        .collect();
    let header = [
        &format!("messages in it ({format})"),
        "delivery, ms",
        "bare APPEND, ms",
        "STATUS and APPEND, ms",
        "delivery ÷ the first, beyond what APPEND grows",
        "… STATUS and APPEND grow",
    ];
    report.table(header, &rows);
    let [delivery, append, status] = [0, 1, 2].map(|of| last[of].median() / first[of].median());
    let [beyond_append, beyond_status] = [1, 2].map(|base| beyond(last, base));
    report.line(format!(
        "- {format}, from {few} to {many} messages: a delivery × {delivery:.2}, a bare APPEND × {append:.2}, with a STATUS before \
         it × {status:.2}. Beyond the APPEND a delivery grows × {beyond_append} (target ≤ {FLAT}): {}; beyond STATUS and \
         APPEND × {beyond_status}.",
        verdict(beyond_append.is_flat()),
    ));
}
