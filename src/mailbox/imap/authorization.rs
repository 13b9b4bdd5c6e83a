//! Checks whether the server honours the authorization identity with which the service account logs in.
//!
//! SASL PLAIN carries two names (RFC 4616): the account that logs in, and the user for whom it acts. Some servers ignore the
//! second name (Courier's `authsasl_plain`, Stalwart), say OK, and open the service account's own INBOX. All mail would go
//! there, and each answer would be OK.
//!
//! A login for the user alone cannot show that. A login for another user can, if the server has an id for each mailbox and
//! the two ids differ. Otherwise a login for a name that does not exist shows it: that login is refused, or leads to another
//! mailbox.

use crate::base::deadline::Deadline;
use crate::base::endpoint::Endpoint;
use crate::imap::session::{SERVER_FAILURE_CODES, connect, refused_login};
use crate::imap::{Session, Settings};
use crate::mailbox::{Mailbox, MailboxError, MailboxFailure, Position};
use std::fmt;

/// The name of a user who does not exist. The name is constant, so that a server which creates a mailbox for any name
/// creates only one.
const INVENTED: &str = "maildrop-check-0f9c41d27ab3";

/// Dovecot closes the connection if a master user acts for a user who is in no userdb. A server that has just crashed closes
/// it as well. Only the name can be the reason after this many closed connections in a row, if the user's own logins succeed
/// before, between and after them.
const CUT_OFF_ENOUGH: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honoured {
    /// Two users have separate mailboxes, by the server's own ids.
    TwoUsersApart,
    /// The server refuses a user who does not exist.
    InventedUserRefused,
    /// The server closes the connection for a user who does not exist, each time, and never for a user who does.
    InventedUserCutOff,
    /// The server lets in a user who does not exist, and this user has no such mailbox.
    InventedUserHasNone,
    /// The server lets in any name, and each name has a mailbox of its own.
    EachHasHisOwn,
}

impl fmt::Display for Honoured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TwoUsersApart => "two users have a mailbox each, by the server's ids",
            Self::InventedUserRefused => "a user who does not exist is refused",
            Self::InventedUserCutOff => "a user who does not exist is cut off",
            Self::InventedUserHasNone => "a user who does not exist has no mailbox",
            Self::EachHasHisOwn => "any name is let in, and has a mailbox of its own",
        })
    }
}

/// Names one kind of login to one server, so that the proof is made once for all such logins. `here` is this machine's name:
/// "localhost" is another server on each machine.
pub fn login_path(settings: &Settings, here: &str) -> String {
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

/// Finds out whether a login for `user` leads to this user's mailbox, by comparing that with the mailboxes of other names.
/// Nothing is created that a login or a delivery would not create. There is one exception: if two empty mailboxes look the
/// same, a mailbox is created in the other account [for a moment](shares_account_with).
///
/// The user's mailbox is read twice, and others log in between the two readings:
///
/// - another user, if there is one: different ids of the two mailboxes prove that the server honours the name;
/// - otherwise a user who does not exist;
/// - if that login fails, the service account for itself, because a server may check the name and still open the service
///   account's mailbox.
///
/// A server that honours the name refuses each of these logins, has no such mailbox for it, or opens another one. The second
/// reading shows that the server refused the name, and not one connection too many.
///
/// No other name logs in if the user's own mailbox is not open `in_time`: that mailbox may hang.
///
/// # Errors
/// `IdentityIgnored` if another name leads to the same mailbox. Any other failure proves nothing. The service account's own
/// mailbox is refused without a login, because a login for that account leads there in either case.
pub fn prove(
    settings: &Settings,
    (user, other): (&str, Option<&str>),
    mailbox: &str,
    deadline: Deadline,
    in_time: Deadline,
) -> Result<Honoured, MailboxError> {
    let probe = Probe { settings, user, mailbox, deadline };
    if settings.user == user {
        return Err(probe.unclear("the service account's own mailbox does not show where mail for others goes"));
    }
    let (mut before, mut _session) = Probe { deadline: in_time, ..probe }.users_fingerprint()?;
    if let Some(other) = other.filter(|_| before.id.is_some()) {
        // The other user's login may hang, be refused, or lead to no such mailbox. Then the invented user decides.
        let theirs = Probe { deadline: in_time.half_way(), ..probe }.leads_to(other);
        if let Ok(LeadsTo::At(theirs)) = theirs
            && before.is_apart_by_id(&theirs, &probe.users_fingerprint()?.0)
        {
            return Ok(Honoured::TwoUsersApart);
        }
    }
    let name = &probe.with_users_domain(INVENTED);
    let mut cut_off = 0;
    loop {
        // Half of the time, because a server may never answer this login.
        let theirs = Probe { deadline: deadline.half_way(), ..probe }.leads_to(name);
        let its_own = match theirs {
            Ok(LeadsTo::NotThere | LeadsTo::At(_)) => LeadsTo::Refused,
            Ok(LeadsTo::Refused | LeadsTo::CutOff(_)) | Err(_) => probe.service_account_leads_to()?,
        };
        let (after, session) = probe.users_fingerprint()?;
        let is_same = |theirs: &LeadsTo| match theirs {
            LeadsTo::At(theirs) => before.may_be(theirs, &after).ok_or_else(|| probe.unclear(RENUMBERED)),
            _ => Ok(false),
        };
        if is_same(&its_own)? && !probe.is_apart_from(&its_own, &settings.user)? {
            return Err(probe.ignored());
        }
        let theirs = theirs?;
        let looks_the_same = is_same(&theirs)?;
        match theirs {
            LeadsTo::Refused => return Ok(Honoured::InventedUserRefused),
            LeadsTo::NotThere => return Ok(Honoured::InventedUserHasNone),
            LeadsTo::At(_) if !looks_the_same => return Ok(Honoured::EachHasHisOwn),
            LeadsTo::At(_) if probe.is_apart_from(&theirs, name)? => return Ok(Honoured::EachHasHisOwn),
            LeadsTo::At(_) => return Err(probe.ignored()),
            LeadsTo::CutOff(_) if cut_off + 1 == CUT_OFF_ENOUGH => return Ok(Honoured::InventedUserCutOff),
            LeadsTo::CutOff(error) => {
                cut_off += 1;
                tracing::debug!(%error, cut_off, "an invented user was cut off");
            }
        }
        (before, _session) = (after, session);
    }
}

/// Whether `user` sees a mailbox that is created for a moment in the account of `other`: then both users have the same
/// mailboxes. `None` if no mailbox can be created there, or it vanishes during the check. If the account may create
/// mailboxes but not delete them, the mailbox stays. That bothers no user: `other` is the service account, or does not
/// exist.
///
/// # Errors
/// If the server cannot be reached, does not let both users in, or reports a failure of its own.
pub fn shares_account_with(
    settings: &Settings,
    [user, other]: [&str; 2],
    deadline: Deadline,
) -> Result<Option<bool>, MailboxError> {
    // A unique name, so that no other process uses or deletes this mailbox.
    let bare = format!("maildrop-check-{}", uuid::Uuid::now_v7().simple());
    // On some servers all mailboxes of a user are below INBOX.
    for mailbox in [bare.clone(), format!("INBOX.{bare}"), format!("INBOX/{bare}")] {
        let mut made = connect(settings, deadline)?.authenticate(other)?.open(&mailbox);
        if !made.create_briefly()? {
            continue;
        }
        let users = connect(settings, deadline).and_then(|connection| connection.authenticate(user));
        let is_missing_there = users.and_then(|session| session.open(&mailbox).is_missing());
        let is_gone = made.is_missing();
        if let Err(error) = made.delete() {
            tracing::warn!(%error, mailbox, user = other, "a mailbox of the login test is still there: delete it");
        }
        let is_shown = !is_missing_there?;
        return Ok((is_shown || !is_gone?).then_some(is_shown));
    }
    Ok(None)
}

struct Fingerprint {
    position: Position,
    /// The server's own id, if it has one.
    id: Option<String>,
}

impl Fingerprint {
    /// Whether `theirs` is another mailbox than the one with the fingerprints `self` and `after`. An id that changes with
    /// each session proves nothing. Dovecot's id changes if its index is not kept on disk.
    fn is_apart_by_id(&self, theirs: &Self, after: &Self) -> bool {
        self.id.is_some() && self.id == after.id && theirs.id.is_some() && self.id != theirs.id
    }

    /// Whether `theirs` may be the mailbox with the fingerprints `self` and `after`: UIDNEXT only grows while UIDVALIDITY
    /// stays the same (RFC 3501 section 2.3.1.1). `None` if UIDVALIDITY changed: Courier reports another one at each STATUS
    /// for a mailbox that was never selected.
    fn may_be(&self, theirs: &Self, after: &Self) -> Option<bool> {
        if self.is_apart_by_id(theirs, after) {
            return Some(false);
        }
        let (before, theirs, after) = (self.position, theirs.position, after.position);
        let may_be =
            theirs.uid_validity == before.uid_validity && (before.uid_next..=after.uid_next).contains(&theirs.uid_next);
        (before.uid_validity == after.uid_validity).then_some(may_be)
    }
}

enum LeadsTo {
    Refused,
    /// The connection ended instead of an answer.
    CutOff(MailboxError),
    NotThere,
    At(Fingerprint),
}

#[derive(Clone, Copy)]
struct Probe<'a> {
    settings: &'a Settings,
    user: &'a str,
    mailbox: &'a str,
    deadline: Deadline,
}

impl Probe<'_> {
    /// With the user's domain, because a server may refuse any name of a foreign domain.
    fn with_users_domain(&self, name: &str) -> String {
        match self.user.rsplit_once('@') {
            Some((_, domain)) => format!("{name}@{domain}"),
            None => name.to_owned(),
        }
    }

    /// The fingerprint of the user's mailbox, with the open session.
    fn users_fingerprint(&self) -> Result<(Fingerprint, super::ImapMailbox), MailboxError> {
        let mut mailbox = connect(self.settings, self.deadline)?.authenticate(self.user)?.open(self.mailbox);
        match mailbox.position()? {
            Some(position) => Ok((Fingerprint { position, id: mailbox.id() }, mailbox)),
            None => Err(self.unclear("the mailbox has no UIDVALIDITY")),
        }
    }

    fn leads_to(&self, name: &str) -> Result<LeadsTo, MailboxError> {
        let connection = connect(self.settings, self.deadline)?;
        let doing = connection.doing(name);
        match connection.try_authenticate(name) {
            Ok(Ok(session)) => self.fingerprint_in(session),
            Ok(Err(refusal)) if refusal.has_code(&SERVER_FAILURE_CODES) => Err(refused_login(doing, &refusal)),
            Ok(Err(_)) => Ok(LeadsTo::Refused),
            Err(error) if error.failure == MailboxFailure::ConnectionLost => Ok(LeadsTo::CutOff(error)),
            Err(error) => Err(error),
        }
    }

    /// The mailbox to which the service account's own login leads. A master user need not have a mailbox, so any refusal
    /// counts.
    fn service_account_leads_to(&self) -> Result<LeadsTo, MailboxError> {
        match connect(self.settings, self.deadline)?.try_authenticate(&self.settings.user) {
            Ok(Ok(session)) => self.fingerprint_in(session),
            Ok(Err(_)) => Ok(LeadsTo::Refused),
            Err(error) if error.failure == MailboxFailure::ConnectionLost => Ok(LeadsTo::Refused),
            Err(error) => Err(error),
        }
    }

    /// Whether the mailbox of `name`, although it looks like the user's, is another one. UIDVALIDITY and UIDNEXT do not
    /// distinguish two empty mailboxes of the same second, nor those of a server with one UIDVALIDITY for all.
    fn is_apart_from(&self, theirs: &LeadsTo, name: &str) -> Result<bool, MailboxError> {
        if !matches!(theirs, LeadsTo::At(Fingerprint { position: Position { uid_next: 1, .. }, .. })) {
            return Ok(false);
        }
        Ok(shares_account_with(self.settings, [self.user, name], self.deadline)? == Some(false))
    }

    /// Uses STATUS, which does not create the mailbox.
    fn fingerprint_in(&self, session: Session) -> Result<LeadsTo, MailboxError> {
        let mut mailbox = session.open(self.mailbox);
        let doing = mailbox.doing("asking where it stands,");
        match mailbox.status(&doing)? {
            Ok(position) => Ok(LeadsTo::At(Fingerprint { position, id: mailbox.id() })),
            Err(refusal) if refusal.has_code(&SERVER_FAILURE_CODES) => Err(refusal.refusal(&doing)),
            Err(_) => Ok(LeadsTo::NotThere),
        }
    }

    fn ignored(&self) -> MailboxError {
        let detail = format!(
            "other names lead to the same {:?} as {:?}: the server ignores imap.act_for_user or imap.login_user, and mail for \
             everybody would go there; see docs/imap-servers.md, \"Proof of logins\"",
            self.mailbox, self.user
        );
        MailboxError::new(MailboxFailure::IdentityIgnored, DOING, detail)
    }

    fn unclear(&self, detail: &str) -> MailboxError {
        MailboxError::new(MailboxFailure::Refused, DOING, detail)
    }
}

const DOING: &str = "finding out whether the IMAP server honours the authorization identity";
const RENUMBERED: &str = "the mailbox got another UIDVALIDITY meanwhile";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mailbox_is_reported_from_another_by_what_only_grows() {
        let at = |uid_validity, uid_next| Fingerprint { position: Position { uid_validity, uid_next }, id: None };
        let one = |theirs: Fingerprint| at(7, 5).may_be(&theirs, &at(7, 6)).unwrap();
        assert!(one(at(7, 5)) && one(at(7, 6)));
        assert!(!one(at(8, 5)) && !one(at(7, 4)) && !one(at(7, 7)));
        assert_eq!(at(7, 5).may_be(&at(9, 5), &at(8, 5)), None);
    }

    #[test]
    fn ids_that_differ_prove_two_mailboxes_and_equal_ones_nothing() {
        let with = |id: Option<&str>, uid_validity| Fingerprint {
            position: Position { uid_validity, uid_next: 5 },
            id: id.map(str::to_owned),
        };
        let may_be = |before, theirs, after| with(before, 7).may_be(&with(theirs, 7), &with(after, 7));
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        assert_eq!(may_be(a, b, a), Some(false));
        assert_eq!(with(a, 7).may_be(&with(b, 7), &with(a, 8)), Some(false));
        // Ids of one skeleton, of no server, or new for each session: the position decides.
        for (before, theirs, after) in [(a, a, a), (None, b, None), (a, None, a), (a, b, c), (a, b, None)] {
            assert_eq!(may_be(before, theirs, after), Some(true), "{before:?} {theirs:?} {after:?}");
            assert_eq!(with(before, 7).may_be(&with(theirs, 8), &with(after, 7)), Some(false));
            assert_eq!(with(before, 7).may_be(&with(theirs, 7), &with(after, 8)), None);
        }
    }
}
