//! Does the server honour the authorization identity, for which the service account logs in?
//!
//! SASL PLAIN carries two names (RFC 4616): who logs in, and for whom. Some servers skip the second (Courier's `authsasl_plain`,
//! Stalwart), say OK, and open the service account's own INBOX: all mail would go there, and each answer would be OK. A login for
//! the user alone cannot show it. A login for a name that cannot exist can: it is refused, or leads to another mailbox.

use crate::base::deadline::Deadline;
use crate::base::endpoint::Endpoint;
use crate::imap::session::{ITS_OWN_TROUBLE, connect, refused_login};
use crate::imap::{Session, Settings};
use crate::mailbox::{Mailbox, MailboxError, MailboxFailure, Position};
use std::fmt;
use std::time::Duration;

/// Names of users who do not exist. Always the same: a server that makes a mailbox for any name makes two, and not two more each
/// time.
const INVENTED: [&str; 2] = ["maildrop-check-0f9c41d27ab3", "maildrop-check-5e86b2107fd4"];

/// On most servers UIDVALIDITY is the second in which a mailbox was made. After this long, it is another second.
const ANOTHER_SECOND: Duration = Duration::from_millis(1100);

/// Dovecot closes the connection on a user whom a master user may act for and no userdb has. So does a server that has just
/// crashed; but so often in a row, while the user is let in before, between and after, it is the name.
const CUT_OFF_ENOUGH: u32 = 3;

/// How a server was seen to honour the authorization identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honoured {
    /// It does not let in a user who does not exist.
    InventedUserRefused,
    /// It closes the connection on a user who does not exist, each time, and never on a user who does.
    InventedUserCutOff,
    /// It lets in a user who does not exist, who then has no such mailbox.
    InventedUserHasNone,
    /// It lets in any name, and each has a mailbox of its own.
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

/// Names one way of logging in to one server: what was found out about it holds for all who log in so. `here` is this machine's
/// name, since a server on this machine is another one on each.
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

/// Whether a login for this user is the service account's for itself. It leads to the account's own mailbox, whether or not the
/// server heeds the name: mail for it needs no proof. Nor can it give one: everybody else's login may lead there, too.
pub fn is_for_itself(settings: &Settings, user: &str) -> bool {
    settings.user == user
}

/// Finds out whether a login for `user` leads to this user's mailbox, by where other names lead. Nothing is made but what a
/// delivery to the user would make as well, and what a server makes by itself at a login; and, where two empty mailboxes look the
/// same, one in the other's account, [for a moment](is_shown_what_is_made_for).
///
/// Between two looks at the user's mailbox, a user who does not exist logs in, and where that is refused, the service account for
/// itself: a server may check the name and open the service account's mailbox all the same. Each is refused, or has no such
/// mailbox, or another one. The second look shows that the name was refused, and not one connection too many.
///
/// # Errors
/// `IdentityIgnored` where another name leads to the same mailbox. Any other failure leaves it open; and so does the service
/// account's own mailbox, which is [not asked](is_for_itself).
pub fn prove(settings: &Settings, user: &str, mailbox: &str, deadline: Deadline) -> Result<Honoured, MailboxError> {
    prove_if_in_time(settings, user, mailbox, deadline, deadline)?
}

/// The same, but nobody else logs in where the user's own mailbox is not open `in_time`: that is `Ok(Err(…))`, and says nothing of the server.
///
/// # Errors
/// As above.
pub fn prove_if_in_time(
    settings: &Settings,
    user: &str,
    mailbox: &str,
    deadline: Deadline,
    in_time: Deadline,
) -> Result<Result<Honoured, MailboxError>, MailboxError> {
    let probe = Probe { settings, user, mailbox, deadline };
    if is_for_itself(settings, user) {
        return Err(probe.unclear("the service account's own mailbox does not show where mail for others goes"));
    }
    let mut first_look = match (Probe { deadline: in_time, ..probe }).users_position() {
        Err(error) if error.failure == MailboxFailure::TimedOut => return Ok(Err(error)),
        looked => Some(looked?),
    };
    let [first, second] = INVENTED.map(|name| probe.with_users_domain(name));
    let mut name = &first;
    let mut cut_off = 0;
    loop {
        let (before, _session) = match first_look.take() {
            Some(looked) => looked,
            None => probe.users_position()?,
        };
        let theirs = probe.leads_to(name)?;
        let its_own = match theirs {
            LeadsTo::Refused | LeadsTo::CutOff(_) => probe.service_account_leads_to()?,
            LeadsTo::NotThere | LeadsTo::At(_) => LeadsTo::Refused,
        };
        let (after, _) = probe.users_position()?;
        // Courier tells another one at each look at a mailbox that was never selected.
        let compared = [&theirs, &its_own].into_iter().any(|theirs| matches!(theirs, LeadsTo::At(_)));
        if compared && before.uid_validity != after.uid_validity {
            return Err(probe.unclear("the mailbox got another UIDVALIDITY meanwhile"));
        }
        let same = |theirs: &LeadsTo| matches!(theirs, LeadsTo::At(position) if may_be_same(before, *position, after));
        if same(&its_own) && !probe.is_apart_from(&its_own, &settings.user)? {
            return Err(probe.ignored());
        }
        match theirs {
            LeadsTo::Refused => return Ok(Ok(Honoured::InventedUserRefused)),
            LeadsTo::NotThere => return Ok(Ok(Honoured::InventedUserHasNone)),
            LeadsTo::At(_) if !same(&theirs) => return Ok(Ok(Honoured::EachHasHisOwn)),
            // Two that were made in one second look the same while they are empty.
            LeadsTo::At(_) if name == &first => {
                std::thread::sleep(ANOTHER_SECOND.min(deadline.remaining()));
                name = &second;
            }
            LeadsTo::At(_) if probe.is_apart_from(&theirs, name)? => return Ok(Ok(Honoured::EachHasHisOwn)),
            LeadsTo::At(_) => return Err(probe.ignored()),
            LeadsTo::CutOff(error) => {
                cut_off += 1;
                tracing::debug!(%error, cut_off, "an invented user was cut off");
                if cut_off == CUT_OFF_ENOUGH {
                    return Ok(Ok(Honoured::InventedUserCutOff));
                }
            }
        }
    }
}

/// The same, where there is an earlier proof, and little time. Where this comes to nothing, as with a server that does not answer a login
/// for somebody who does not exist, half of the time is left to see whether the service account's own INBOX is the user's: a server may
/// look at the name, and open that for everybody.
///
/// # Errors
/// As above.
pub fn renew(
    settings: &Settings,
    user: &str,
    mailbox: &str,
    deadline: Deadline,
    in_time: Deadline,
) -> Result<Result<Honoured, MailboxError>, MailboxError> {
    let in_half = deadline.half_way();
    match prove_if_in_time(settings, user, mailbox, in_half, in_time.or_sooner(in_half)) {
        Err(error) if error.failure != MailboxFailure::IdentityIgnored && !is_for_itself(settings, user) => {
            match are_one(settings, [user, &settings.user], deadline) {
                Ok(Some(true)) => Err(Probe { settings, user, mailbox: "INBOX", deadline }.ignored()),
                Ok(Some(false) | None) | Err(_) => Err(error),
            }
        }
        found => found,
    }
}

/// Whether two users' INBOXes are one; `None` where both are empty and look the same.
///
/// # Errors
/// Where the server cannot be reached, or does not let both in.
pub fn are_one(settings: &Settings, users: [&str; 2], deadline: Deadline) -> Result<Option<bool>, MailboxError> {
    let [user, other] = users;
    let probe = Probe { settings, user, mailbox: "INBOX", deadline };
    let (before, _session) = probe.users_position()?;
    let theirs = probe.position_in(connect(settings, deadline)?.authenticate(other)?)?;
    let (after, _) = probe.users_position()?;
    Ok(match theirs {
        LeadsTo::At(_) if before.uid_validity != after.uid_validity => None,
        LeadsTo::At(position) if may_be_same(before, position, after) => (position.uid_next > 1).then_some(true),
        _ => Some(false),
    })
}

/// Whether `user` is shown a mailbox that is made for a moment in the account of `other`, and taken away again: then both have the
/// same mailboxes. `None` where none can be made there, or it is not there for as long as it takes. Where the account may make mailboxes
/// and delete none, it stays: `other` is the account itself, or nobody.
///
/// # Errors
/// Where the server cannot be reached, does not let both in, or says that it is in trouble.
pub fn is_shown_what_is_made_for(
    settings: &Settings,
    [user, other]: [&str; 2],
    deadline: Deadline,
) -> Result<Option<bool>, MailboxError> {
    // Nobody else looks for it, or takes it away.
    let bare = format!("maildrop-check-{}", uuid::Uuid::now_v7().simple());
    // On some servers all mailboxes of a user are below INBOX.
    for mailbox in [bare.clone(), format!("INBOX.{bare}"), format!("INBOX/{bare}")] {
        let mut made = connect(settings, deadline)?.authenticate(other)?.open(&mailbox);
        if !made.make()? {
            continue;
        }
        let users = connect(settings, deadline).and_then(|connection| connection.authenticate(user));
        let is_missing_there = users.and_then(|session| session.open(&mailbox).is_missing());
        let is_gone = made.is_missing();
        if let Err(error) = made.take_away() {
            tracing::warn!(%error, mailbox, user = other, "a mailbox that was made for a moment is still there: delete it");
        }
        let is_shown = !is_missing_there?;
        return Ok((is_shown || !is_gone?).then_some(is_shown));
    }
    Ok(None)
}

/// Whether `theirs` may be the position of the mailbox between `before` and `after`: UIDNEXT only grows while UIDVALIDITY stays
/// the same (RFC 3501 section 2.3.1.1).
fn may_be_same(before: Position, theirs: Position, after: Position) -> bool {
    theirs.uid_validity == before.uid_validity && (before.uid_next..=after.uid_next).contains(&theirs.uid_next)
}

/// Where another name leads.
enum LeadsTo {
    Refused,
    /// The connection ended in place of an answer.
    CutOff(MailboxError),
    NotThere,
    At(Position),
}

#[derive(Clone, Copy)]
struct Probe<'a> {
    settings: &'a Settings,
    user: &'a str,
    mailbox: &'a str,
    deadline: Deadline,
}

impl Probe<'_> {
    /// With the user's domain: a server may refuse a name that is in none of its domains.
    fn with_users_domain(&self, name: &str) -> String {
        match self.user.rsplit_once('@') {
            Some((_, domain)) => format!("{name}@{domain}"),
            None => name.to_owned(),
        }
    }

    /// Where the user's mailbox stands; the session goes on.
    fn users_position(&self) -> Result<(Position, super::ImapMailbox), MailboxError> {
        let mut mailbox = connect(self.settings, self.deadline)?.authenticate(self.user)?.open(self.mailbox);
        match mailbox.position()? {
            Some(position) => Ok((position, mailbox)),
            None => Err(self.unclear("the mailbox has no UIDVALIDITY")),
        }
    }

    fn leads_to(&self, name: &str) -> Result<LeadsTo, MailboxError> {
        let connection = connect(self.settings, self.deadline)?;
        let doing = connection.doing(name);
        match connection.try_authenticate(name) {
            Ok(Ok(session)) => self.position_in(session),
            Ok(Err(refusal)) if refusal.has_code(&ITS_OWN_TROUBLE) => Err(refused_login(doing, &refusal)),
            Ok(Err(_)) => Ok(LeadsTo::Refused),
            Err(error) if error.failure == MailboxFailure::ConnectionLost => Ok(LeadsTo::CutOff(error)),
            Err(error) => Err(error),
        }
    }

    /// Where the service account leads by itself. A master user need not be a user, so any refusal will do.
    fn service_account_leads_to(&self) -> Result<LeadsTo, MailboxError> {
        match connect(self.settings, self.deadline)?.try_authenticate(&self.settings.user) {
            Ok(Ok(session)) => self.position_in(session),
            Ok(Err(_)) => Ok(LeadsTo::Refused),
            Err(error) if error.failure == MailboxFailure::ConnectionLost => Ok(LeadsTo::Refused),
            Err(error) => Err(error),
        }
    }

    /// Whether `name`, whose mailbox looks like the user's, has another one all the same. Of two empty ones that were made in the same second,
    /// or where UIDVALIDITY is the same for all, UIDVALIDITY and UIDNEXT cannot tell.
    fn is_apart_from(&self, theirs: &LeadsTo, name: &str) -> Result<bool, MailboxError> {
        if !matches!(theirs, LeadsTo::At(Position { uid_next: 1, .. })) {
            return Ok(false);
        }
        Ok(is_shown_what_is_made_for(self.settings, [self.user, name], self.deadline)? == Some(false))
    }

    /// Where that session's mailbox stands. It is not created.
    fn position_in(&self, session: Session) -> Result<LeadsTo, MailboxError> {
        let mut mailbox = session.open(self.mailbox);
        let doing = mailbox.doing("asking where it stands,");
        match mailbox.status(&doing)? {
            Ok(position) => Ok(LeadsTo::At(position)),
            Err(refusal) if refusal.has_code(&ITS_OWN_TROUBLE) => Err(refusal.refusal(&doing)),
            Err(_) => Ok(LeadsTo::NotThere),
        }
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
        let one = |theirs| may_be_same(at(7, 5), theirs, at(7, 6));
        assert!(one(at(7, 5)) && one(at(7, 6)));
        assert!(!one(at(8, 5)) && !one(at(7, 4)) && !one(at(7, 7)));
    }
}
