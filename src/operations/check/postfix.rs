//! `check`: whether the Postfix of this host, if there is one, has the limits that the configuration assumes, and sends the mail of
//! its virtual domains to their transport. postconf(1) prints the settings of main.cf. If a limit is shorter, Postfix may bounce a
//! message that the recipient has received.

use crate::base::deadline::Deadline;
use crate::base::program_output::output_of;
use crate::config::{Config, Delivery};
use crate::ledger::Finding;
use crate::ledger::FindingState::{Bad, Good, Warning};
use crate::ledger::check::good;
use humantime::format_duration as span;
use std::collections::HashMap;
use std::time::Duration;

/// For users without /usr/sbin in PATH.
const ELSEWHERE: &str = "/usr/sbin/postconf";

const QUEUE_LIFETIME: &str = "maximal_queue_lifetime";
/// The limits of postfix/master.cf.maildrop and master.cf.maildrop-via. Postfix knows such a limit only if main.cf sets it, or if
/// master.cf has the transport.
const OF_OUR_TRANSPORTS: [&str; 2] = ["maildrop_time_limit", "maildrop-via_time_limit"];
/// The limit of a transport that sets none.
const OF_OTHERS: &str = "command_time_limit";

/// Domains in both are local: their mail goes to `local_transport` (Postfix, ADDRESS_CLASS_README).
const LOCAL_DOMAINS: &str = "mydestination";
const VIRTUAL_DOMAINS: &str = "virtual_mailbox_domains";

const KILLS: &str = "at this one Postfix kills a delivery that is still under way, and bounces its message";

/// The default units of numbers (postconf(5), pipe(8)).
const DAYS: char = 'd';
const SECONDS: char = 's';

/// The findings on both limits, and on domains that Postfix delivers in another way.
pub(super) fn inspect(config: &Config, deadline: Deadline) -> Vec<Finding> {
    let postfix = PostfixSettings::by_postconf(deadline);
    let limits = [time_limit(&config.delivery, &postfix), queue_lifetime(config, &postfix)];
    limits.into_iter().chain(local_domains(&postfix)).collect()
}

/// Domains of `virtual_mailbox_domains` that Postfix takes for local ones. Tables in either setting are not read.
fn local_domains(postfix: &PostfixSettings) -> Option<Finding> {
    let in_both: Vec<&str> = postfix
        .words(VIRTUAL_DOMAINS)
        .filter(|domain| postfix.words(LOCAL_DOMAINS).any(|local| local.eq_ignore_ascii_case(domain)))
        .collect();
    let found = format!("{LOCAL_DOMAINS} and {VIRTUAL_DOMAINS} both contain {}", in_both.join(", "));
    let fix = "remove it from mydestination in main.cf: until then Postfix delivers its mail by local_transport, and not by virtual_transport";
    (!in_both.is_empty()).then(|| Bad.finding("Postfix's domains", found, fix))
}

/// When Postfix kills a delivery, and bounces its message.
fn time_limit(delivery: &Delivery, postfix: &PostfixSettings) -> Finding {
    let (what, deadline, seconds) = ("deadline", delivery.deadline, delivery.postfix_time_limit.as_secs());
    let limit_of = |name| Some((postfix.time(name, SECONDS)?, name));
    let shortest = OF_OUR_TRANSPORTS.into_iter().filter_map(limit_of).min();
    let Some((limit, name)) = shortest.or_else(|| limit_of(OF_OTHERS)) else {
        let found = format!("{}; Postfix's limit: {}", span(deadline), span(delivery.postfix_time_limit));
        let advice = "see that main.cf says the same: postconf maildrop_time_limit command_time_limit";
        return Good.finding(what, found, advice);
    };
    let found = format!("{}; Postfix's limit: {} ({name})", span(deadline), span(limit));
    if limit > deadline {
        return good(what, found);
    }
    let (state, name) = if shortest.is_some() { (Bad, name) } else { (Warning, "NAME_time_limit") };
    state.finding(what, found, format!("set {name} = {seconds}s in main.cf, for the transport: {KILLS}"))
}

/// How long Postfix retries a message before it bounces it.
fn queue_lifetime(config: &Config, postfix: &PostfixSettings) -> Finding {
    let what = "queue lifetime";
    let (configured, append_grace) = (config.delivery.postfix_queue_lifetime, config.imap.append_grace);
    let (ours, seconds) = (span(configured), configured.as_secs());
    let Some(lifetime) = postfix.time(QUEUE_LIFETIME, DAYS) else {
        let advice = format!("see that main.cf says the same: postconf {QUEUE_LIFETIME}");
        return Good.finding(what, ours.to_string(), advice);
    };
    let theirs = span(lifetime);
    let found = format!("{ours}, and Postfix's is {theirs} ({QUEUE_LIFETIME})");
    if let Some((key, problem)) = config.retention.forgets_too_early(lifetime.saturating_add(append_grace)) {
        Bad.finding(what, found, format!("retention.{key}: {problem}"))
    } else if lifetime < configured {
        let why = "Postfix gives up sooner than expected (at 0 after one try), and may bounce what the recipient has received";
        let set =
            format!("say delivery.postfix_queue_lifetime = \"{theirs}\", or {QUEUE_LIFETIME} = {seconds}s in main.cf");
        Bad.finding(what, found, format!("{set}: {why}"))
    } else {
        good(what, found)
    }
}

/// Postfix's settings, as far as postconf prints them.
#[derive(Default)]
struct PostfixSettings(HashMap<String, String>);

impl PostfixSettings {
    /// Empty if there is no postconf, or if it does not answer.
    fn by_postconf(deadline: Deadline) -> Self {
        // -x expands a value that refers to another setting. postconf(1) omits unknown settings, and warns of them on stderr.
        let arguments =
            [&["-x", QUEUE_LIFETIME, OF_OTHERS, LOCAL_DOMAINS, VIRTUAL_DOMAINS][..], &OF_OUR_TRANSPORTS].concat();
        output_of(&["postconf", ELSEWHERE], &arguments, deadline).map(|text| Self::read(&text)).unwrap_or_default()
    }

    fn read(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        Self(pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect())
    }

    fn time(&self, name: &str, unit: char) -> Option<Duration> {
        time(self.0.get(name)?, unit)
    }

    /// The entries of a list, which commas or spaces separate (postconf(5)).
    fn words(&self, name: &str) -> impl Iterator<Item = &str> {
        let entries = self.0.get(name).into_iter();
        entries.flat_map(|list| list.split([',', ' ', '\t']).filter(|entry| !entry.is_empty()))
    }
}

/// A time as Postfix reads it (`src/global/conv_time.c`): a number and one letter, or a number alone, which is in `unit`.
fn time(text: &str, unit: char) -> Option<Duration> {
    let has_unit = text.ends_with(|c: char| !c.is_ascii_digit());
    humantime::parse_duration(&if has_unit { text.to_owned() } else { format!("{text}{unit}") }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::FindingState;
    use std::path::Path;

    const LEAST: &str = "[database]\nengine = \"postgresql\"\nhost = \"x\"\ndatabase = \"x\"\nuser = \"x\"\n\
                         [imap]\nhost = \"x\"\nuser = \"x\"\npassword_file = \"/x\"\n";

    fn config(more: &str) -> Config {
        Config::parse(Path::new("/x"), &format!("{LEAST}{more}")).unwrap()
    }

    #[test]
    fn a_domain_that_is_local_and_virtual_is_named_since_its_mail_goes_to_the_local_transport() {
        let look = |local: &str, domains: &str| {
            local_domains(&PostfixSettings::read(&format!(
                "mydestination = {local}\nvirtual_mailbox_domains = {domains}\n"
            )))
        };
        let found = look("$myhostname, Mail.axial.net, localhost", "example.net mail.axial.net").unwrap();
        assert!(found.found.ends_with("both contain mail.axial.net"), "{found:?}");
        assert_eq!(look("mx1.axial.net, localhost.axial.net, localhost", "mail.axial.net"), None);
        assert_eq!(look("localhost", ""), None);
        assert_eq!(local_domains(&PostfixSettings::default()), None);
    }

    #[test]
    fn a_time_is_read_as_postfix_reads_it() {
        for (text, seconds) in [
            ("5d", 432_000),
            ("5", 432_000),
            ("0", 0),
            ("0s", 0),
            ("1000s", 1000),
            ("90m", 5400),
            ("3h", 10_800),
            ("2w", 1_209_600),
        ] {
            assert_eq!(time(text, DAYS), Some(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(time("1000", SECONDS), Some(Duration::from_secs(1000)));
        let too_much = "99999999999999999999d";
        for text in ["", "d", "5dd", "-1d", "five", "$bounce_queue_lifetime", "5é", too_much] {
            assert_eq!(time(text, DAYS), None, "{text}");
        }
    }

    #[test]
    fn a_queue_lifetime_that_is_shorter_than_is_reckoned_with_is_bad() {
        let forgets = "[retention]\nmessages_older_than = \"7d\"\n";
        for (more, answer, state, advice) in [
            ("", "maximal_queue_lifetime = 5d\n", FindingState::Good, None),
            ("", "maximal_queue_lifetime = 120h\n", FindingState::Good, None),
            ("", "maximal_queue_lifetime = 10\n", FindingState::Good, None),
            ("", "maximal_queue_lifetime = 1h\n", FindingState::Bad, Some("delivery.postfix_queue_lifetime = \"1h\"")),
            (
                "",
                "maximal_queue_lifetime = 431999s\n",
                FindingState::Bad,
                Some("maximal_queue_lifetime = 432000s in main.cf"),
            ),
            ("", "maximal_queue_lifetime = 0\n", FindingState::Bad, Some("at 0 after one try")),
            // The longest time that can be parsed.
            ("", "maximal_queue_lifetime = 18446744073709551615s\n", FindingState::Good, None),
            (
                "[delivery]\npostfix_queue_lifetime = \"1d\"\n",
                "maximal_queue_lifetime = 1d\n",
                FindingState::Good,
                None,
            ),
            // If the ledger forgets a message while Postfix has it, the message is delivered twice.
            (forgets, "maximal_queue_lifetime = 5d\n", FindingState::Good, None),
            (
                forgets,
                "maximal_queue_lifetime = 7d\n",
                FindingState::Bad,
                Some("retention.messages_older_than: 7days is too short"),
            ),
            ("", "", FindingState::Good, Some("see that main.cf says the same: postconf maximal_queue_lifetime")),
            ("", "maximal_queue_lifetime = soon\n", FindingState::Good, Some("see that main.cf says the same")),
        ] {
            let found = queue_lifetime(&config(more), &PostfixSettings::read(answer));
            assert_eq!(found.state, state, "{answer}: {found:?}");
            assert_eq!(found.fix.is_some(), advice.is_some(), "{answer}: {found:?}");
            assert!(advice.is_none_or(|advice| found.fix.as_deref().unwrap_or_default().contains(advice)), "{found:?}");
        }
    }

    #[test]
    fn a_time_limit_that_a_delivery_reaches_is_bad() {
        let of_all = "command_time_limit = 1000s\n";
        for (answer, state, advice) in [
            ("maildrop_time_limit = 1000s\ncommand_time_limit = 10s\n", FindingState::Good, None),
            ("maildrop_time_limit = 240\n", FindingState::Bad, Some("set maildrop_time_limit = 1000s in main.cf")),
            ("maildrop_time_limit = 241s\n", FindingState::Good, None),
            // The shorter limit of the two transports counts.
            (
                "maildrop_time_limit = 1h\nmaildrop-via_time_limit = 1m\n",
                FindingState::Bad,
                Some("set maildrop-via_time_limit"),
            ),
            (of_all, FindingState::Good, None),
            ("command_time_limit = 4m\n", FindingState::Warning, Some("NAME_time_limit = 1000s")),
            ("", FindingState::Good, Some("see that main.cf says the same: postconf maildrop_time_limit")),
        ] {
            let found = time_limit(&config("").delivery, &PostfixSettings::read(answer));
            assert_eq!(found.state, state, "{answer}: {found:?}");
            assert_eq!(found.fix.is_some(), advice.is_some(), "{answer}: {found:?}");
            assert!(advice.is_none_or(|advice| found.fix.as_deref().unwrap_or_default().contains(advice)), "{found:?}");
        }
    }
}
