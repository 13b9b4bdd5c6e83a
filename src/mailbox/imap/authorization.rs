//! Does the server honour the authorization identity: for whom the service account logs in?
//!
//! SASL PLAIN carries two names (RFC 4616): who logs in, and for whom. Some servers read the first and skip the second
//! (Courier's `authsasl_plain`, Stalwart), say OK, and open the service account's own INBOX: every user's mail would go there,
//! and every answer would say that all went well. No answer to a user's own login can tell. What tells is what another name
//! leads to: one that cannot exist is refused, or leads to another mailbox than the user's.

use crate::base::deadline::Deadline;
use crate::base::endpoint::Endpoint;
use crate::imap::session::{ITS_OWN_TROUBLE, connect, refused_login};
use crate::imap::{Session, Settings};
use crate::mailbox::{Mailbox, MailboxError, MailboxFailure, Position};
use std::fmt;
use std::time::Duration;

/// What users are called who do not exist. Always the same: a server that makes a mailbox for whoever comes makes these two,
/// once, and not two more at each time of asking.
const INVENTED: [&str; 2] = ["maildrop-check-0f9c41d27ab3", "maildrop-check-5e86b2107fd4"];

/// UIDVALIDITY is the second in which a mailbox was made, on most servers. After so long, another one is made in another second.
const ANOTHER_SECOND: Duration = Duration::from_millis(1100);

/// Dovecot closes the connection on a user whom a master user may act for, and whom no userdb has. So does a server that has just
/// crashed: so often in a row, the user being let in before, between and after, it is the name.
const CUT_OFF_ENOUGH: u32 = 3;

/// How a server was seen to honour it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honoured {
    /// It does not let in a user who does not exist.
    InventedUserRefused,
    /// It closes the connection on a user who does not exist, each time, and on a user who does exist it never did meanwhile.
    InventedUserCutOff,
    /// It lets in a user who does not exist, who then has no such mailbox.
    InventedUserHasNone,
    /// It lets in whoever comes, and each has a mailbox of his own.
    EachHasHisOwn,
}

impl fmt::Display for Honoured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InventedUserRefused => "a user who does not exist is refused",
            Self::InventedUserCutOff => "a user who does not exist is cut off",
            Self::InventedUserHasNone => "a user who does not exist has no mailbox",
            Self::EachHasHisOwn => "any name is let in, and has a mailbox of its own",
        })
    }
}

/// One way of logging in to one server: what was found out about it holds for all who log in so.
///
/// A server on this machine is another one on each: `here` is this machine's name.
#[must_use]
pub fn way_in(settings: &Settings, here: &str) -> String {
    let place = match &settings.address {
        Endpoint::Tcp { host, port } if settings.address.is_on_this_machine() => format!("{host}:{port} of {here}"),
        Endpoint::Tcp { host, port } => format!("{host}:{port}"),
        Endpoint::Socket(path) => format!("{} of {here}", path.display()),
    };
    let how = match (&settings.login_user, settings.act_for_user) {
        (Some(pattern), false) => format!("as {pattern}"),
        _ => "for {user}".to_owned(),
    };
    format!("{place}, {:?}, {} {how}", settings.login, settings.user)
}

/// Finds out whether a login for `user` leads to this user's mailbox, by where other names lead. Nothing is written, but what a
/// delivery to the user would make as well, and what a server makes by itself for whoever logs in.
///
/// Between two looks at the user's mailbox, a user who does not exist logs in, and where that is refused, the service account for
/// itself: a server may look at the name and open the service account's mailbox all the same. Each is refused, or has no such
/// mailbox, or another one. That the user is let in once more afterwards shows that what was refused was the name, and not one
/// connection too many.
///
/// # Errors
/// `IdentityIgnored` where another name leads to the same mailbox. Any other failure leaves it open.
pub fn prove(settings: &Settings, user: &str, mailbox: &str, deadline: Deadline) -> Result<Honoured, MailboxError> {
    let looker = Looker { settings, user, mailbox, deadline };
    let [first, second] = INVENTED.map(|name| looker.in_the_shape_of_the_user(name));
    let mut name = &first;
    let mut cut_off = 0;
    loop {
        let (before, _session) = looker.at_home()?;
        let theirs = looker.of_another(name)?;
        let its_own = match theirs {
            Theirs::Refused | Theirs::CutOff(_) if settings.user != user => looker.of_the_service_account()?,
            _ => Theirs::Refused,
        };
        let (after, _) = looker.at_home()?;
        // Courier makes up another one for each look at a mailbox that nobody has selected yet.
        let compared = [&theirs, &its_own].into_iter().any(|theirs| matches!(theirs, Theirs::At(_)));
        if compared && before.uid_validity != after.uid_validity {
            return Err(looker.unclear("the mailbox got another UIDVALIDITY meanwhile"));
        }
        let same = |theirs: &Theirs| matches!(theirs, Theirs::At(position) if may_be_one(before, *position, after));
        if same(&its_own) {
            return Err(looker.ignored());
        }
        match theirs {
            Theirs::Refused => return Ok(Honoured::InventedUserRefused),
            Theirs::NotThere => return Ok(Honoured::InventedUserHasNone),
            Theirs::At(_) if !same(&theirs) => return Ok(Honoured::EachHasHisOwn),
            // Two that were made in one second look the same while they are empty.
            Theirs::At(_) if name == &first => {
                looker.pause();
                name = &second;
            }
            Theirs::At(_) => return Err(looker.ignored()),
            Theirs::CutOff(error) => {
                cut_off += 1;
                tracing::debug!(%error, cut_off, "an invented user was cut off");
                if cut_off == CUT_OFF_ENOUGH {
                    return Ok(Honoured::InventedUserCutOff);
                }
            }
        }
    }
}

/// Whether two users' INBOXes are one; `None` where that cannot be told: both are empty, and look the same.
///
/// # Errors
/// Where the server cannot be reached, or does not let both in.
pub fn are_one(settings: &Settings, users: [&str; 2], deadline: Deadline) -> Result<Option<bool>, MailboxError> {
    let [user, other] = users;
    let looker = Looker { settings, user, mailbox: "INBOX", deadline };
    let (before, _session) = looker.at_home()?;
    let theirs = looker.stands(connect(settings, deadline)?.authenticate(other)?)?;
    let (after, _) = looker.at_home()?;
    Ok(match theirs {
        Theirs::At(_) if before.uid_validity != after.uid_validity => None,
        Theirs::At(position) if may_be_one(before, position, after) => (position.uid_next > 1).then_some(true),
        _ => Some(false),
    })
}

/// Whether a look at one mailbox may have seen `theirs` between `before` and `after`: while UIDVALIDITY stays the same, UIDNEXT
/// only grows (RFC 3501 section 2.3.1.1).
fn may_be_one(before: Position, theirs: Position, after: Position) -> bool {
    theirs.uid_validity == before.uid_validity && (before.uid_next..=after.uid_next).contains(&theirs.uid_next)
}

/// Where another name leads.
enum Theirs {
    Refused,
    /// The connection ended in place of an answer.
    CutOff(MailboxError),
    NotThere,
    At(Position),
}

struct Looker<'a> {
    settings: &'a Settings,
    user: &'a str,
    mailbox: &'a str,
    deadline: Deadline,
}

impl Looker<'_> {
    /// A server that knows several domains refuses what is in none of them, whoever it is.
    fn in_the_shape_of_the_user(&self, name: &str) -> String {
        match self.user.rsplit_once('@') {
            Some((_, domain)) => format!("{name}@{domain}"),
            None => name.to_owned(),
        }
    }

    /// Where the user's mailbox stands; the session goes on.
    fn at_home(&self) -> Result<(Position, super::ImapMailbox), MailboxError> {
        let mut mailbox = connect(self.settings, self.deadline)?.authenticate(self.user)?.open(self.mailbox);
        match mailbox.position()? {
            Some(position) => Ok((position, mailbox)),
            None => Err(self.unclear("the mailbox has no UIDVALIDITY")),
        }
    }

    /// Where this name leads.
    fn of_another(&self, name: &str) -> Result<Theirs, MailboxError> {
        let connection = connect(self.settings, self.deadline)?;
        let doing = connection.doing(name);
        match connection.ask_in(name) {
            Ok(Ok(session)) => self.stands(session),
            Ok(Err(refusal)) if refusal.has_code(&ITS_OWN_TROUBLE) => Err(refused_login(doing, &refusal)),
            Ok(Err(_)) => Ok(Theirs::Refused),
            Err(error) if error.failure == MailboxFailure::ConnectionLost => Ok(Theirs::CutOff(error)),
            Err(error) => Err(error),
        }
    }

    /// Where the service account leads by itself. A master user need not be a user: why it is not let in does not matter.
    fn of_the_service_account(&self) -> Result<Theirs, MailboxError> {
        match connect(self.settings, self.deadline)?.ask_in(&self.settings.user) {
            Ok(Ok(session)) => self.stands(session),
            Ok(Err(_)) => Ok(Theirs::Refused),
            Err(error) if error.failure == MailboxFailure::ConnectionLost => Ok(Theirs::Refused),
            Err(error) => Err(error),
        }
    }

    /// Where that session's mailbox stands. It is not made.
    fn stands(&self, session: Session) -> Result<Theirs, MailboxError> {
        let mut mailbox = session.open(self.mailbox);
        let doing = mailbox.doing("asking where it stands,");
        match mailbox.status(&doing)? {
            Ok(position) => Ok(Theirs::At(position)),
            Err(refusal) if refusal.has_code(&ITS_OWN_TROUBLE) => Err(refusal.refusal(&doing)),
            Err(_) => Ok(Theirs::NotThere),
        }
    }

    fn pause(&self) {
        std::thread::sleep(ANOTHER_SECOND.min(self.deadline.remaining()));
    }

    fn ignored(&self) -> MailboxError {
        let detail = format!(
            "other names lead to the same {:?} as {:?}: the server ignores imap.act_for_user or imap.login_user, and mail for \
             everybody would go there; see docs/install.md, \"Servers\"",
            self.mailbox, self.user
        );
        MailboxError::new(MailboxFailure::IdentityIgnored, DOING, detail)
    }

    fn unclear(&self, detail: &str) -> MailboxError {
        MailboxError::new(MailboxFailure::Refused, DOING, detail)
    }
}

const DOING: &str = "finding out whether the IMAP server honours the authorization identity";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mailbox_is_told_from_another_by_what_only_grows() {
        let at = |uid_validity, uid_next| Position { uid_validity, uid_next };
        let one = |theirs| may_be_one(at(7, 5), theirs, at(7, 6));
        assert!(one(at(7, 5)) && one(at(7, 6)));
        assert!(!one(at(8, 5)) && !one(at(7, 4)) && !one(at(7, 7)));
    }
}
