//! Routing: finds the mailboxes of an address.
//!
//! The table `addresses` comes first, then the rules of the configuration file, which name whole domains. For a recipient, the
//! order within the table is Postfix's (`virtual(5)`, `canonical(5)`): the full address, the address without its extension, then
//! `@domain`, the row for all other addresses there.

use crate::config::DomainRule;
use crate::ledger::{AddressBook, Destination};
use crate::message::{Address, fold};

/// Characters with a special meaning in a mailbox store or a path: they mark a domain, a folder, a wildcard (RFC 3501 section
/// 6.3.8), the separator of a master user, or a variable. A sender may write them in a quoted local part.
const NOT_IN_A_LOCAL_PART: [char; 5] = ['@', '/', '*', '%', '\\'];

/// Whether the rule names a user for this address. `"b@y.example"@x.example` must not become the user b@y.example of another
/// domain.
fn names_user_of(rule: &DomainRule, address: &Address) -> bool {
    let is_safe = !rule.user.contains("{local}") || !address.local().contains(NOT_IN_A_LOCAL_PART);
    fold(&rule.domain) == address.domain() && is_safe
}

/// In which capacity an address is routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    /// As the envelope recipient.
    Recipient,
    /// As the author, who gets a Sent copy. Rows for `@domain` do not count: with them, each invented address there would be a
    /// member.
    Sender,
}

/// The result of routing an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To the mailboxes of a user here.
    To(Destination),
    /// This row of the table names no IMAP user.
    NoImapUser(String),
    /// No user here has this address.
    Unknown,
    /// The table `addresses` has no row, and no rule names the domain. The database is not filled yet, or is the wrong one: that
    /// is no reason to refuse mail.
    TableEmpty,
}

/// The rules for routing addresses.
#[derive(Clone, Debug, Default)]
pub struct Router {
    rules: Vec<DomainRule>,
    delimiters: String,
}

impl Router {
    /// `delimiters` is Postfix's `recipient_delimiter`: a set of characters, none if empty.
    #[must_use]
    pub fn new(rules: Vec<DomainRule>, delimiters: impl Into<String>) -> Self {
        Self { rules, delimiters: delimiters.into() }
    }

    /// The keys to look up in the table `addresses`, folded, in order of precedence.
    ///
    /// An author's extension is removed in any domain, as Postfix does for senders (`canonical(5)`, `smtpd_sender_login_maps`):
    /// only Postfix knows the local domains. This has a cost if a member's address elsewhere is in the table (anna@example.org),
    /// and names there contain the delimiter (anna-maria@example.org). That member then gets the other author's Sent copies.
    /// config.example.toml warns of it.
    #[must_use]
    pub(crate) fn lookups(&self, address: &Address, party: Party) -> Vec<String> {
        let address = address.folded();
        let bare = address.without_extension(&self.delimiters);
        let mut lookups = vec![address.to_string()];
        lookups.extend(bare.map(|bare| bare.to_string()));
        if party == Party::Recipient {
            lookups.push(format!("@{}", address.domain()));
        }
        lookups
    }

    /// Routes the address with the table's rows for its [`lookups`](Self::lookups).
    #[must_use]
    pub(crate) fn route(&self, address: &Address, party: Party, book: &AddressBook) -> Route {
        for row in self.lookups(address, party) {
            let Some(Destination { user, inbox, sent }) = book.get(&row) else { continue };
            // No other row or rule may apply: mail must not go elsewhere.
            return if user.is_empty() {
                Route::NoImapUser(row)
            } else {
                Route::To(Destination::new(user, inbox, sent))
            };
        }
        let address = address.folded();
        let address = address.without_extension(&self.delimiters).unwrap_or(address);
        match self.rules.iter().find(|rule| names_user_of(rule, &address)) {
            Some(rule) => Route::To(Destination::new(filled_in(&rule.user, &address), &rule.inbox, &rule.sent)),
            None if book.empty => Route::TableEmpty,
            None => Route::Unknown,
        }
    }
}

/// Fills in the template's placeholders in one pass, so that no part of an address is read as a placeholder.
fn filled_in(template: &str, address: &Address) -> String {
    let mut user = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        user.push_str(before);
        let (value, after) = if let Some(after) = after.strip_prefix("address}") {
            (address.to_string(), after)
        } else if let Some(after) = after.strip_prefix("local}") {
            (address.local().to_owned(), after)
        } else if let Some(after) = after.strip_prefix("domain}") {
            (address.domain().to_owned(), after)
        } else {
            ("{".to_owned(), after)
        };
        user.push_str(&value);
        rest = after;
    }
    user.push_str(rest);
    user
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    fn to(user: &str) -> Route {
        Route::To(destination(user))
    }

    fn destination(user: &str) -> Destination {
        Destination { user: user.into(), inbox: "INBOX".into(), sent: "Sent".into() }
    }

    fn book(addresses: &[&str]) -> AddressBook {
        let entries = addresses.iter().map(|&a| (a.to_owned(), destination(&format!("owner of {a}")))).collect();
        AddressBook { entries, ..AddressBook::default() }
    }

    fn rule(domain: &str, user: &str) -> DomainRule {
        DomainRule { domain: domain.into(), user: user.into(), ..DomainRule::default() }
    }

    #[test]
    fn what_is_asked_for() {
        let router = Router::new(Vec::new(), "+-");
        let lookups = |text: &str, party| router.lookups(&address(text), party);
        assert_eq!(lookups("Doug@Axial.NET", Party::Recipient), ["doug@axial.net", "@axial.net"]);
        assert_eq!(
            lookups("doug-a+b@axial.net", Party::Recipient),
            ["doug-a+b@axial.net", "doug@axial.net", "@axial.net"]
        );
        assert_eq!(lookups("doug+a@axial.net", Party::Sender), ["doug+a@axial.net", "doug@axial.net"]);
        let router = Router::default();
        assert_eq!(router.lookups(&address("doug+a@x"), Party::Recipient), ["doug+a@x", "@x"]);
    }

    #[test]
    fn the_most_exact_row_wins_whatever_order_the_table_answers_in() {
        let router = Router::new(vec![rule("axial.net", "{local}")], "+");
        let route = |text: &str, rows: &[&str]| router.route(&address(text), Party::Recipient, &book(rows));
        let all = ["@axial.net", "doug@axial.net", "doug+a@axial.net"];
        assert_eq!(route("Doug+A@axial.net", &all), to("owner of doug+a@axial.net"));
        assert_eq!(route("doug+b@axial.net", &all), to("owner of doug@axial.net"));
        assert_eq!(route("scuba@axial.net", &all), to("owner of @axial.net"));
        assert_eq!(route("scuba+x@axial.net", &["doug@axial.net"]), to("scuba"));
        assert_eq!(route("doug@other.example", &all), Route::Unknown);
    }

    /// An unknown recipient is refused for good, so two functions must not fold an address differently.
    #[test]
    fn case_keeps_nobody_from_being_found() {
        let router = Router::new(vec![rule("MÜLLER.example", "{local}")], "+");
        let rows = book(&["doug@bücher.example", "Scuba@Axial.net"]);
        let route = |text: &str| router.route(&address(text), Party::Recipient, &rows);
        assert_eq!(route("Doug@BÜCHER.Example"), to("owner of doug@bücher.example"));
        assert_eq!(route("scuba@axial.net"), to("owner of Scuba@Axial.net"));
        assert_eq!(route("lisa@Müller.example"), to("lisa"));
        let rows = book(&["νίκοσ@axial.net", "gross@axial.net"]);
        let route = |text: &str| router.route(&address(text), Party::Recipient, &rows);
        assert_eq!(route("Νίκος@axial.net"), to("owner of νίκοσ@axial.net"));
        assert_eq!(route("groß+x@axial.net"), to("owner of gross@axial.net"));
        assert_eq!(router.lookups(&address("Doug@BÜCHER.Example"), Party::Sender), ["doug@bücher.example"]);
    }

    #[test]
    fn a_row_for_everybody_else_makes_nobody_a_member() {
        let router = Router::new(Vec::new(), "+");
        let rows = book(&["@axial.net", "lisa@axial.net"]);
        assert_eq!(router.route(&address("forged@axial.net"), Party::Sender, &rows), Route::Unknown);
        assert_eq!(router.route(&address("lisa+news@axial.net"), Party::Sender, &rows), to("owner of lisa@axial.net"));
        let by_rule = Router::new(vec![rule("axial.net", "{address}")], "+");
        assert_eq!(by_rule.route(&address("Lisa+x@Axial.net"), Party::Sender, &book(&[])), to("lisa@axial.net"));
    }

    #[test]
    fn a_local_part_that_could_name_somebody_elses_mailbox_is_unknown_to_a_rule_and_known_to_the_table() {
        let router = Router::new(vec![rule("x.example", "{local}"), rule("y.example", "{address}")], "+");
        let rows = |row: &str| AddressBook { empty: false, ..book(&[row]) };
        for local in ["\"b@y.example\"", "a/b", "*", "lisa*service", "a%b", "\"a\\\\b\"", "\"b@y.example+x\""] {
            let to = address(&format!("{local}@x.example"));
            for party in [Party::Recipient, Party::Sender] {
                assert_eq!(router.route(&to, party, &rows("other@x.example")), Route::Unknown, "{to} {party:?}");
                let row = to.folded().to_string();
                assert_eq!(router.route(&to, party, &rows(&row)), super::tests::to(&format!("owner of {row}")));
            }
            let whole = address(&format!("{local}@y.example"));
            assert!(
                matches!(router.route(&whole, Party::Recipient, &rows("other@x.example")), Route::To(_)),
                "{whole}"
            );
        }
        assert_eq!(router.route(&address("b.y'{z}@x.example"), Party::Recipient, &book(&[])), to("b.y'{z}"));
    }

    #[test]
    fn while_the_table_is_empty_nobody_is_unknown() {
        let router = Router::new(vec![rule("Axial.net", "{address}")], "");
        let empty = AddressBook { empty: true, ..AddressBook::default() };
        assert_eq!(router.route(&address("doug@other.example"), Party::Recipient, &empty), Route::TableEmpty);
        assert_eq!(router.route(&address("doug@axial.net"), Party::Recipient, &empty), to("doug@axial.net"));
    }

    #[test]
    fn a_row_without_an_imap_user_sends_mail_nowhere_else() {
        let router = Router::new(vec![rule("axial.net", "{local}")], "+");
        let mut rows = book(&["@axial.net", "doug@axial.net"]);
        rows.entries[1].1.user.clear();
        let route = |text: &str, party| router.route(&address(text), party, &rows);
        for party in [Party::Recipient, Party::Sender] {
            assert_eq!(route("Doug+a@axial.net", party), Route::NoImapUser("doug@axial.net".into()));
        }
        assert_eq!(route("scuba@axial.net", Party::Recipient), to("owner of @axial.net"));
    }

    #[test]
    fn inbox_has_one_name_however_it_is_spelt() {
        let mut rows = book(&["doug@axial.net"]);
        (rows.entries[0].1.inbox, rows.entries[0].1.sent) = ("Inbox".into(), "inbox".into());
        let rule = DomainRule { inbox: "iNBOX".into(), sent: "inbox/Sent".into(), ..rule("rule.net", "{local}") };
        let router = Router::new(vec![rule], "");
        let names = |text: &str| match router.route(&address(text), Party::Recipient, &rows) {
            Route::To(destination) => [destination.inbox, destination.sent],
            other => panic!("{other:?}"),
        };
        assert_eq!(names("doug@axial.net"), ["INBOX", "INBOX"]);
        assert_eq!(names("doug@rule.net"), ["INBOX", "inbox/Sent"]);
    }

    #[test]
    fn an_address_is_never_read_as_a_placeholder() {
        let router = Router::new(vec![rule("x", "{domain}/{local}{")], "");
        assert_eq!(router.route(&address("{domain}@x"), Party::Recipient, &book(&[])), to("x/{domain}{"));
    }

    #[test]
    fn a_template_names_no_other_placeholder() {
        for good in ["{address}", "{local}", "mail-{local}.{domain}", "postbox"] {
            assert!(rule("x", good).has_known_placeholders(), "{good}");
        }
        for bad in ["", "{user}", "{local", "{local}{x}", "{Local}"] {
            assert!(!rule("x", bad).has_known_placeholders(), "{bad}");
        }
    }
}
