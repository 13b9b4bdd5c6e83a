//! Larger and larger messages: time, and memory.

use super::curve::{in_turns, linear, verdict};
use super::fixture::{Fixture, clear};
use crate::figures::{Report, Series, milliseconds, ratio};
use crate::floor::Calls;
use crate::site::{STRANGER, Site, message, with_crlf};
use crate::support::database::Engine;
use crate::support::imap_server::somebody;
use crate::{plot, process};

/// In bytes.
const SIZES: [(usize, &str); 6] = [
    (1_000, "1 KB"),
    (10_000, "10 KB"),
    (100_000, "100 KB"),
    (1_000_000, "1 MB"),
    (10_000_000, "10 MB"),
    (50_000_000, "50 MB"),
];

/// How often the memory of each is looked at; the greatest counts.
const LOOKS: usize = 3;

pub fn measure(report: &mut Report, site: &Site, runs: usize) {
    let user = somebody("size");
    let fixture = Fixture::new(Engine::Postgres17, [&user]);
    report.progress(format!("growth: {runs} messages of each size"));
    let measured = in_turns(1, runs, &SIZES, |(size, _)| {
        let message = message(STRANGER, *size);
        let delivery = milliseconds(fixture.deliver_this(&user, &message).took);
        let append = process::run(&mut site.floor(Calls::Append, &user), &with_crlf(&message)).took;
        [delivery, milliseconds(append)]
    });
    report.line("### The message\n\nThe memory is the program's own high-water mark (VmHWM).");
    let (mut rows, mut memory, mut within) = (Vec::new(), Vec::new(), true);
    for ((size, name), [delivery, append]) in SIZES.iter().zip(&measured) {
        let peak = |_| process::peak_memory(&mut fixture.command(&user, STRANGER), &message(STRANGER, *size));
        let peak = (0..LOOKS).map(peak).max().unwrap_or_default() as f64 * 1024.0 / 1e6;
        let bound = 2.0 * *size as f64 / 1e6 + 10.0;
        within &= peak <= bound;
        memory.push((*size as f64, peak));
        let bound = format!("{bound:.1}: {}", verdict(peak <= bound));
        rows.push([
            (*name).to_owned(),
            delivery.to_string(),
            append.to_string(),
            ratio(delivery, append),
            format!("{peak:.1}"),
            bound,
        ]);
    }
    report.table(
        ["message", "delivery, ms", "bare APPEND, ms", "delivery ÷ APPEND", "memory, MB", "at most 2 × it + 10 MB"],
        &rows,
    );
    let points = |column: usize| -> Vec<(f64, f64)> {
        let medians = measured.iter().map(|series: &[Series; 2]| series[column].median());
        SIZES.iter().map(|(size, _)| *size as f64).zip(medians).collect()
    };
    linear(report, "A delivery", &points(0));
    linear(report, "A bare APPEND", &points(1));
    let [.., (_, at_1), (_, at_10), (_, at_50)] = points(0)[..] else { unreachable!("there are more sizes") };
    report.line(format!(
        "- Each MB more takes a delivery {:.1} ms from 1 MB to 10 MB, and {:.1} ms from 10 MB to 50 MB.",
        (at_10 - at_1) / 9.0,
        (at_50 - at_10) / 40.0
    ));
    report.line(format!("- Memory at most 2 × the message + 10 MB, at every size: {}.", verdict(within)));
    let curves = [("delivery, ms", points(0)), ("bare APPEND, ms", points(1)), ("memory, MB", memory)];
    report.plot("message", "The message", plot::curves("One delivery", "bytes of the message", "ms; MB", &curves));
    clear([&user]);
}
