//! Whether a server honours the authorization identity of the service account is seen by where other names lead, whatever
//! it makes of them.

use crate::imap_accounts::{Accounts, Login, Welcome};
use crate::imap_peer::{Peer, peer};
use maildrop_command::base::deadline::Deadline;
use maildrop_command::base::endpoint::Endpoint;
use maildrop_command::imap::{Mechanism, Settings};
use maildrop_command::mailbox::MailboxFailure;
use maildrop_command::mailbox::imap::authorization::{Honoured, login_path, prove};
use std::time::Duration;

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// What is found out of such a server with doug's INBOX.
fn found(welcome: impl Fn(&Login) -> Welcome + Send + Sync + 'static) -> Result<Honoured, MailboxFailure> {
    let server = Accounts::start(None, welcome);
    let found = prove(&server.settings(), ("doug@x.org", None), "INBOX", soon(), soon()).map_err(|error| error.failure);
    // Where mailboxes tell by themselves whose they are, none is made to see it.
    assert_eq!((server.appended(), server.creations()), (vec![], 0));
    found
}

fn invented(login: &Login) -> bool {
    login.acting_for.starts_with("maildrop-check-") && login.acting_for.ends_with("@x.org")
}

#[test]
fn a_server_that_ignores_it_is_found_out() {
    assert_eq!(found(|login| Welcome::to(&login.name, 7, 5)), Err(MailboxFailure::IdentityIgnored));
    // Also while others deliver to that one INBOX.
    let grows = |login: &Login| Welcome::to(&login.name, 7, 5 + login.earlier as u32);
    assert_eq!(found(grows), Err(MailboxFailure::IdentityIgnored));
}

#[test]
fn a_server_that_looks_at_the_name_and_opens_the_service_accounts_inbox_is_found_out() {
    let looks = |login: &Login| match invented(login) {
        true => Welcome::Refused("NO [AUTHORIZATIONFAILED] no such user"),
        false => Welcome::to(&login.name, 7, 5),
    };
    assert_eq!(found(looks), Err(MailboxFailure::IdentityIgnored));
}

#[test]
fn a_server_that_refuses_who_does_not_exist_heeds_it_whether_or_not_the_service_account_has_mailboxes() {
    for its_own in [true, false] {
        for refusal in ["NO [AUTHORIZATIONFAILED] no such user", "NO Login failed."] {
            let honours = move |login: &Login| match login.acting_for.as_str() {
                "doug@x.org" => Welcome::to("doug", 7, 5),
                "service" if its_own => Welcome::to("service", 3, 5),
                _ => Welcome::Refused(refusal),
            };
            assert_eq!(found(honours), Ok(Honoured::InventedUserRefused));
        }
    }
}

#[test]
fn any_name_may_be_let_in_where_each_has_a_mailbox_of_its_own() {
    let has_none = |login: &Login| if invented(login) { Welcome::Empty } else { Welcome::to("doug", 7, 5) };
    assert_eq!(found(has_none), Ok(Honoured::InventedUserHasNone));
    let made = |login: &Login| Welcome::to(&login.acting_for, if invented(login) { 8 } else { 7 }, 1);
    assert_eq!(found(made), Ok(Honoured::EachHasHisOwn));
    // UIDVALIDITY is the same for everybody (Zimbra): UIDNEXT, which only grows, is less.
    let constant = |login: &Login| Welcome::to(&login.acting_for, 1, if invented(login) { 1 } else { 5 });
    assert_eq!(found(constant), Ok(Honoured::EachHasHisOwn));
}

/// Both are empty, and were made in the same second; or UIDVALIDITY is the same for all. Where one name is that of the service account, no
/// other name could show more.
#[test]
fn empty_mailboxes_that_look_the_same_are_distinguished_by_one_that_is_made_for_a_moment() {
    let refused = || Welcome::Refused("NO [AUTHORIZATIONFAILED] no such user");
    let found = |whose: fn(&str) -> String, strangers: bool| {
        let server = Accounts::start(None, move |login| match invented(login) {
            true if !strangers => refused(),
            _ => Welcome::to(&whose(&login.acting_for), 7, 1),
        });
        let found =
            prove(&server.settings(), ("doug@x.org", None), "INBOX", soon(), soon()).map_err(|error| error.failure);
        assert_eq!((server.made(), server.appended()), (vec![], vec![]));
        found
    };
    let (refuses, lets_in) = (Ok(Honoured::InventedUserRefused), Ok(Honoured::EachHasHisOwn));
    let ignored = Err(MailboxFailure::IdentityIgnored);
    for (strangers, honoured) in [(false, refuses), (true, lets_in)] {
        assert_eq!(found(|name| name.to_owned(), strangers), honoured);
        assert_eq!(found(|name| format!("below {name}"), strangers), honoured);
        // Where none can be made it stays as it looks.
        assert_eq!(found(|name| format!("full {name}"), strangers), ignored);
        // A server in trouble shows nothing.
        assert_eq!(found(|name| format!("busy {name}"), strangers), Err(MailboxFailure::Refused));
        assert_eq!(found(|_| "service".to_owned(), strangers), ignored);
        assert_eq!(found(|_| "below service".to_owned(), strangers), ignored);
    }
}

/// That it is let in there is as it should be; and there everybody may be led.
#[test]
fn the_service_accounts_own_mailbox_is_not_asked_since_it_shows_nothing_of_others() {
    for others in [Welcome::to, |_: &str, _, _| Welcome::Refused("NO [AUTHORIZATIONFAILED] no such user")] {
        let server = Accounts::start(None, move |login| match login.acting_for.as_str() {
            "service" => Welcome::to("service", 7, 5),
            _ => others("service", 7, 5),
        });
        let unproven = prove(&server.settings(), ("service", Some("doug")), "INBOX", soon(), soon()).unwrap_err();
        assert_eq!(unproven.failure, MailboxFailure::Refused, "{unproven}");
        assert_eq!(server.logins(), [""; 0]);
    }
}

#[test]
fn a_server_in_trouble_proves_nothing() {
    for refusal in ["NO [LIMIT] too many", "NO [UNAVAILABLE] later", "NO [INUSE] busy", "NO [SERVERBUG] oh"] {
        let trouble = move |login: &Login| match login.acting_for.as_str() {
            "doug@x.org" => Welcome::to("doug", 7, 5),
            _ => Welcome::Refused(refusal),
        };
        assert_eq!(found(trouble), Err(MailboxFailure::Refused), "{refusal}");
    }
    // One connection too many, without a code: the user is not let in a second time, either.
    let full = |login: &Login| match login.earlier {
        0 => Welcome::to("service", 7, 5),
        _ => Welcome::Refused("NO [ALERT] too many connections"),
    };
    assert_eq!(found(full), Err(MailboxFailure::LoginRefused));
    // It crashes once, and ignores the name before and after.
    let crashes = |login: &Login| match login.earlier {
        1 => Welcome::CutOff,
        _ => Welcome::to("service", 7, 5),
    };
    assert_eq!(found(crashes), Err(MailboxFailure::IdentityIgnored));
    // Likewise, and the service account is no user.
    let crashes_once = |login: &Login| match (login.earlier, login.acting_for.as_str()) {
        (1, _) => Welcome::CutOff,
        (_, "service") => Welcome::Refused("NO [AUTHORIZATIONFAILED] no such user"),
        _ => Welcome::to("service", 7, 5),
    };
    assert_eq!(found(crashes_once), Err(MailboxFailure::IdentityIgnored));
    // It makes no sense to a stranger; and to the service account.
    for name in ["maildrop-check-0f9c41d27ab3@x.org", "service"] {
        let senseless = move |login: &Login| match login.acting_for.as_str() {
            "doug@x.org" => Welcome::to("doug", 7, 5),
            it if it == name => Welcome::Refused("HELLO who is there"),
            _ => Welcome::Refused("NO [AUTHORIZATIONFAILED] no such user"),
        };
        assert_eq!(found(senseless), Err(MailboxFailure::Protocol), "{name}");
    }
    // A mailbox that cannot be asked for just now is no missing one.
    let later = |login: &Login| match login.acting_for.as_str() {
        "doug@x.org" => Welcome::to("doug", 7, 5),
        _ => Welcome::Answering("NO [UNAVAILABLE] later"),
    };
    assert_eq!(found(later), Err(MailboxFailure::Refused));
    // UIDVALIDITY changes: two looks at one mailbox that is being recreated would look like two mailboxes.
    let recreated = |login: &Login| Welcome::to("service", 7 + login.earlier as u32, 1);
    assert_eq!(found(recreated), Err(MailboxFailure::Refused));
}

#[test]
fn a_server_that_closes_the_connection_on_who_does_not_exist_and_on_nobody_else_heeds_it() {
    let dovecots_master_user = |login: &Login| match login.acting_for.as_str() {
        "doug@x.org" => Welcome::to("doug", 7, 5),
        _ => Welcome::CutOff,
    };
    assert_eq!(found(dovecots_master_user), Ok(Honoured::InventedUserCutOff));
}

/// A check holds for one login; another server, another machine's own server, another account or another name in the
/// login is another login, with a check of its own.
#[test]
fn each_other_login_is_checked_for_itself() {
    let settings = crate::imap_peer::settings(143);
    let at = |address: Endpoint| Settings { address, ..settings.clone() };
    let tcp = |host: &str| at(Endpoint::Tcp { host: host.into(), port: 143 });
    let socket = at(Endpoint::Socket("/run/imap".into()));
    let login_user = |pattern: Option<&str>| Settings {
        act_for_user: false,
        login_user: pattern.map(str::to_owned),
        ..tcp("imap.x.org")
    };
    let ways = [
        login_path(&tcp("imap.x.org"), "mx1"),
        login_path(&tcp("imap.y.org"), "mx1"),
        login_path(&at(Endpoint::Tcp { host: "imap.x.org".into(), port: 993 }), "mx1"),
        login_path(&tcp("127.0.0.1"), "mx1"),
        login_path(&tcp("127.0.0.1"), "mx2"),
        login_path(&socket, "mx1"),
        login_path(&socket, "mx2"),
        login_path(&Settings { user: "another".into(), ..tcp("imap.x.org") }, "mx1"),
        login_path(&Settings { login: Mechanism::Login, ..tcp("imap.x.org") }, "mx1"),
        login_path(&login_user(Some("{user}*service")), "mx1"),
        login_path(&login_user(Some("{user}%service")), "mx1"),
    ];
    for (number, way) in ways.iter().enumerate() {
        assert!(!ways[..number].contains(way), "{way}");
    }
    // One server that all machines use is one login, and so is a login whose pattern is not used.
    assert_eq!(login_path(&tcp("imap.x.org"), "mx2"), ways[0]);
    let unused = Settings { login_user: Some("{user}*service".into()), ..tcp("imap.x.org") };
    assert_eq!(login_path(&unused, "mx1"), ways[0]);
}

#[test]
fn how_it_was_seen_is_reported_in_words() {
    for (honoured, words) in [
        (Honoured::TwoUsersApart, "two users have a mailbox each, by the server's ids"),
        (Honoured::InventedUserRefused, "a user who does not exist is refused"),
        (Honoured::InventedUserCutOff, "a user who does not exist is cut off"),
        (Honoured::InventedUserHasNone, "a user who does not exist has no mailbox"),
        (Honoured::EachHasHisOwn, "any name is let in, and has a mailbox of its own"),
    ] {
        assert_eq!(honoured.to_string(), words);
    }
}

/// Nobody else logs in, and whether the server heeds the name stays open.
#[test]
fn a_mailbox_that_is_not_open_in_time_says_nothing_of_the_server() {
    let (silent, thread) = peer(Peer::rest);
    let doug = ("doug@x.org", None);
    let found = prove(&silent, doug, "INBOX", soon(), Deadline::after(Duration::from_millis(100)));
    assert_eq!(found.unwrap_err().failure, MailboxFailure::TimedOut);
    assert_eq!(thread.join().unwrap(), b"");
    // A refusal is an answer.
    let server = Accounts::start(None, |_| Welcome::Refused("NO [AUTHORIZATIONFAILED] no such user"));
    let found = prove(&server.settings(), doug, "INBOX", soon(), soon());
    assert_eq!(found.unwrap_err().failure, MailboxFailure::AccessDenied);
}

#[test]
fn who_ignores_it_is_found_out_even_where_an_invented_name_gets_no_answer() {
    const REFUSED: Welcome = Welcome::Refused("NO [AUTHORIZATIONFAILED] no such user");
    let in_little_time = |welcome: fn(&Login) -> Welcome| {
        let (server, little) = (Accounts::start(None, welcome), Deadline::after(Duration::from_secs(6)));
        prove(&server.settings(), ("doug@x.org", None), "INBOX", little, little).map_err(|error| error.failure)
    };
    let looks = |login: &Login| if invented(login) { Welcome::Silent } else { Welcome::to("service", 7, 5) };
    assert_eq!(in_little_time(looks), Err(MailboxFailure::IdentityIgnored));
    // The service account has a mailbox of its own, or none, or gets no answer either.
    for silent in [
        |login: &Login| match login.acting_for.as_str() {
            "doug@x.org" => Welcome::to("doug", 7, 5),
            "service" => Welcome::to("service", 3, 5),
            _ => Welcome::Silent,
        },
        |login: &Login| match login.acting_for.as_str() {
            "doug@x.org" => Welcome::to("doug", 7, 5),
            "service" => REFUSED,
            _ => Welcome::Silent,
        },
        |login: &Login| if login.acting_for == "doug@x.org" { Welcome::to("doug", 7, 5) } else { Welcome::Silent },
    ] {
        assert_eq!(in_little_time(silent), Err(MailboxFailure::TimedOut));
    }
}

/// What is found out of such a server with the INBOXes of doug and scuba, and who logged in for that.
fn found_with_two(
    welcome: impl Fn(&Login) -> Welcome + Send + Sync + 'static,
) -> (Result<Honoured, MailboxFailure>, Vec<String>) {
    let server = Accounts::start(None, welcome);
    let users = ("doug@x.org", Some("scuba@x.org"));
    let found = prove(&server.settings(), users, "INBOX", soon(), soon()).map_err(|error| error.failure);
    (found, server.logins())
}

#[test]
fn two_users_whose_mailboxes_have_ids_of_their_own_prove_it_and_nobody_is_invented() {
    // They look the same by all else: made in one second, and empty.
    let (found, logins) = found_with_two(|login| Welcome::with_id("", &login.acting_for, 7, 1));
    assert_eq!(found, Ok(Honoured::TwoUsersApart));
    assert_eq!(logins, ["doug@x.org", "scuba@x.org", "doug@x.org"].map(|user| format!("{user} by service")));
}

type Welcomes = fn(&Login) -> Welcome;

#[test]
fn where_ids_prove_nothing_an_invented_user_does() {
    let refused = |login: &Login| (invented(login) || login.acting_for == "service").then_some("NO no such user");
    let welcomes: [(&str, Welcomes); 4] = [
        // Copied from one skeleton, in which there was mail.
        ("one id", |login| Welcome::with_id(&login.acting_for, "skeleton", 7, 5)),
        ("an id for each session", |login| Welcome::with_id(&login.acting_for, &login.earlier.to_string(), 7, 5)),
        ("no id", |login| Welcome::to(&login.acting_for, 7, 5)),
        ("no such mailbox", |login| match login.acting_for.as_str() {
            "scuba@x.org" => Welcome::Empty,
            name => Welcome::with_id(name, name, 7, 5),
        }),
    ];
    for (what, welcome) in welcomes {
        let (found, logins) =
            found_with_two(move |login| refused(login).map_or_else(|| welcome(login), Welcome::Refused));
        assert_eq!(found, Ok(Honoured::InventedUserRefused), "{what}");
        assert!(logins.iter().any(|login| login.starts_with("maildrop-check-")), "{what}");
        // And it is found out who ignores the name.
        let (found, _) = found_with_two(move |login| welcome(&Login { acting_for: "service".into(), ..login.clone() }));
        assert_eq!(found, Err(MailboxFailure::IdentityIgnored), "{what}");
    }
}

/// Where there is nobody else: the ids say that an invented user has another mailbox, and none is made to see it.
#[test]
fn an_invented_user_whose_mailbox_has_another_id_has_another_mailbox() {
    assert_eq!(found(|login| Welcome::with_id("", &login.acting_for, 7, 1)), Ok(Honoured::EachHasHisOwn));
    // UIDVALIDITY changed between two looks, and the id did not.
    let renumbered = |login: &Login| Welcome::with_id("", &login.acting_for, 7 + login.earlier as u32, 1);
    assert_eq!(found(renumbered), Ok(Honoured::EachHasHisOwn));
    assert_eq!(found(|login| Welcome::with_id("", &login.name, 7, 5)), Err(MailboxFailure::IdentityIgnored));
}
