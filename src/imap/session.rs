//! Connection, TLS, greeting and login.

use super::argument::Command;
use super::connection::{CommandProgress, Conversation, farewell};
use super::stream::Stream;
use super::wire::{Answer, Status};
use super::{Broken, Encryption, Mechanism, Settings};
use super::{MailboxError, MailboxFailure};
use crate::base::deadline::Deadline;
use crate::base::endpoint::Endpoint;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::time::Instant;

/// A server that has greeted this client; no user is logged in.
pub struct Connection {
    conversation: Conversation,
    pub(crate) settings: Settings,
    greeting: String,
    place: String,
}

pub struct Session {
    pub(crate) conversation: Conversation,
    pub(crate) user: String,
    pub(crate) greeting: String,
}

/// Connects and does everything that needs no user: TCP, TLS, greeting, capabilities. The deadline also holds for all later
/// waits on this connection.
pub fn connect(settings: &Settings, deadline: Deadline) -> Result<Connection, MailboxError> {
    let place = match &settings.address {
        Endpoint::Tcp { host, port } => format!("{host}:{port}"),
        Endpoint::Socket(path) => path.display().to_string(),
    };
    let doing = format!("connecting to the IMAP server {place}");
    let stream = Stream::connect(&settings.address, deadline);
    let greeted = stream.and_then(|stream| read_greeting(settings, stream));
    let (conversation, greeting) = greeted.map_err(|broken| broken.while_doing(&doing))?;
    Ok(Connection { conversation, settings: settings.clone(), greeting, place })
}

fn read_greeting(settings: &Settings, mut stream: Stream) -> Result<(Conversation, String), Broken> {
    // A unix socket needs no encryption, and has no host name to verify.
    let host = match (&settings.address, settings.encryption) {
        (Endpoint::Tcp { host, .. }, Encryption::StartTls | Encryption::Implicit) => Some(host),
        _ => None,
    };
    if let Some(host) = host.filter(|_| settings.encryption == Encryption::Implicit) {
        stream.start_tls(tls_config(settings)?, host)?;
    }
    let mut conversation = Conversation::new(stream);
    let greeting = conversation.greeting()?;
    match greeting.status {
        Status::Ok => {}
        Status::Bye => return Err(Broken::new(MailboxFailure::Unreachable, farewell(&greeting).detail)),
        Status::PreAuth => {
            // PREAUTH (RFC 3501 section 7.1.4): it is unknown whose mailboxes these would be.
            return Err(Broken::new(
                MailboxFailure::LoginRefused,
                format!("the server has logged us in before we said as whom: {}", greeting.quote()),
            ));
        }
        Status::No | Status::Bad => return Err(Broken::protocol(greeting.quote())),
    }
    if let Some(host) = host.filter(|_| settings.encryption == Encryption::StartTls) {
        let answer = conversation.run(&Command::new("STARTTLS"), &mut |_| {})?;
        if !answer.is_ok() {
            return Err(Broken::new(MailboxFailure::Unreachable, format!("STARTTLS: {}", answer.quote())));
        }
        let config = tls_config(settings)?;
        conversation.bare_stream()?.start_tls(config, host)?;
        conversation.forget_capabilities();
    }
    learn_capabilities(&mut conversation)?;
    Ok((conversation, greeting.text))
}

fn tls_config(settings: &Settings) -> Result<std::sync::Arc<rustls::ClientConfig>, Broken> {
    crate::base::tls::client_config(settings.ca_file.as_deref())
        .map_err(|e| Broken::new(MailboxFailure::Local, format!("TLS: {e}")))
}

/// Saves a round trip if the server has announced its capabilities unasked.
fn learn_capabilities(conversation: &mut Conversation) -> Result<(), Broken> {
    if conversation.capabilities().is_empty() {
        let answer = conversation.run(&Command::new("CAPABILITY"), &mut |_| {})?;
        if !answer.is_ok() {
            return Err(Broken::protocol(format!("CAPABILITY: {}", answer.quote())));
        }
    }
    Ok(())
}

impl Connection {
    /// Logs in, to act for this user.
    ///
    /// # Errors
    /// `AccessDenied` if the server refuses the account; `LoginRefused` if the server gives no reason, or offers no login
    /// that the settings allow; otherwise those of [`connect`].
    pub fn authenticate(self, user: &str) -> Result<Session, MailboxError> {
        let doing = self.doing(user);
        self.try_authenticate(user)?.map_err(|refusal| refused_login(doing, &refusal))
    }

    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.conversation.set_deadline(deadline);
    }

    pub(crate) fn doing(&self, user: &str) -> String {
        format!("logging in at {} for {user:?}", self.place)
    }

    /// As [`authenticate`](Self::authenticate), with a refusal as a value.
    pub(crate) fn try_authenticate(mut self, user: &str) -> Result<Result<Session, Answer>, MailboxError> {
        let doing = self.doing(user);
        let answer = self.log_in(user).map_err(|broken| broken.while_doing(&doing))?;
        if !answer.is_ok() {
            return Ok(Err(answer));
        }
        learn_capabilities(&mut self.conversation).map_err(|broken| broken.while_doing(&doing))?;
        Ok(Ok(Session { conversation: self.conversation, user: user.to_owned(), greeting: self.greeting }))
    }

    fn log_in(&mut self, user: &str) -> Result<Answer, Broken> {
        let refused = |detail| Err(Broken::new(MailboxFailure::LoginRefused, detail));
        let impossible = |detail| Err(Broken::new(MailboxFailure::Local, detail));
        let settings = &self.settings;
        let password = settings.password.expose();
        let login = match (&settings.login_user, settings.act_for_user) {
            (Some(pattern), false) => pattern.replace("{user}", user),
            _ => settings.user.clone(),
        };
        if [user, &login, password].iter().any(|text| text.contains(['\0', '\r', '\n'])) {
            return impossible("a name or password with a line end or a NUL is never sent");
        }
        if user.is_empty() || login.is_empty() {
            return impossible("no name to log in with");
        }
        let conversation = &mut self.conversation;
        // Some servers repeat the refused credentials in their answer.
        conversation.hide(password);
        // The capabilities are kept until the command is sent, because the command uses LITERAL+ and SASL-IR.
        let before = conversation.capabilities().to_vec();
        let answer = match settings.login {
            Mechanism::Login if settings.act_for_user => {
                return impossible("LOGIN cannot act for another user: use PLAIN, or name a login_user");
            }
            Mechanism::Login if conversation.can("LOGINDISABLED") => {
                return refused("the server offers no LOGIN here (LOGINDISABLED): is encryption missing?");
            }
            Mechanism::Login => {
                let command = Command::new("LOGIN").string(&login)?.secret(password)?;
                conversation.run(&command, &mut |_| {})?
            }
            Mechanism::Plain if !conversation.can("AUTH=PLAIN") => {
                return refused("the server offers no AUTH=PLAIN here: is encryption missing?");
            }
            Mechanism::Plain => {
                let acting_for = if settings.act_for_user { user } else { "" };
                let response = STANDARD.encode(format!("{acting_for}\0{login}\0{password}"));
                conversation.hide(&response);
                authenticate_plain(conversation, &response)?
            }
        };
        // The capabilities before the login prove nothing about those after it.
        if conversation.capabilities() == before && !answer.has_code(&["CAPABILITY"]) {
            conversation.forget_capabilities();
        }
        Ok(answer)
    }

    /// The server's description of itself, for people.
    pub fn describe(&self) -> String {
        describe(&self.greeting, &self.conversation)
    }
}

/// Response codes for failures of the server itself, which say nothing about an account (RFC 5530 section 3).
pub(crate) const SERVER_FAILURE_CODES: [&str; 5] = ["UNAVAILABLE", "SERVERBUG", "INUSE", "LIMIT", "CONTACTADMIN"];

/// A refused login as an error. The account is the reason only if an RFC 5530 code says so: some servers send no codes, and
/// others have a private code for too many connections.
pub(crate) fn refused_login(doing: String, refusal: &Answer) -> MailboxError {
    let failure = if refusal.has_code(&SERVER_FAILURE_CODES) {
        MailboxFailure::Refused
    } else if refusal.has_code(&["AUTHENTICATIONFAILED", "AUTHORIZATIONFAILED"]) {
        MailboxFailure::AccessDenied
    } else {
        MailboxFailure::LoginRefused
    };
    MailboxError::new(failure, doing, refusal.quote())
}

/// RFC 3501 section 6.2.2, with the initial response of RFC 4959 if the server supports it.
fn authenticate_plain(conversation: &mut Conversation, response: &str) -> Result<Answer, Broken> {
    let command = Command::new("AUTHENTICATE").word("PLAIN");
    if conversation.can("SASL-IR") {
        return conversation.run(&command.secret_word(response), &mut |_| {});
    }
    let (tag, progress) = conversation.begin(&command)?;
    for step in [progress, conversation.end(&tag)?, conversation.invitation(&tag)?] {
        if let CommandProgress::Answered(answer) = step {
            return Ok(answer);
        }
    }
    conversation.say(response)?;
    conversation.answer(&tag, &mut |_| {})
}

impl Session {
    pub fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn since(&self) -> Instant {
        self.conversation.since()
    }

    /// Prepares the session for another delivery, with this deadline. `None` if the server has closed the connection
    /// meanwhile or sent anything, such as BYE. Does not wait.
    #[must_use]
    pub fn begin(mut self, deadline: Deadline) -> Option<Self> {
        if !self.conversation.is_sound() {
            return None;
        }
        self.conversation.restart(deadline);
        Some(self)
    }
}

/// The greeting, and the capabilities that a delivery uses.
pub fn describe(greeting: &str, conversation: &Conversation) -> String {
    const USED: [&str; 5] = ["UIDPLUS", "LITERAL+", "LITERAL-", "SASL-IR", "STARTTLS"];
    let used: Vec<&str> = USED.into_iter().filter(|capability| conversation.can(capability)).collect();
    if used.is_empty() { greeting.to_owned() } else { format!("{greeting} ({})", used.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imap::wire::{Code, Status};

    fn no(code: &str) -> Answer {
        let code = Some(Code { name: code.into(), arguments: String::new() });
        Answer { status: Status::No, code, text: "no".into() }
    }

    /// RFC 5530 section 3.
    #[test]
    fn a_refused_login_is_about_the_account_only_by_a_code_that_says_so() {
        use MailboxFailure::{AccessDenied, LoginRefused, Refused};
        for (codes, failure) in [
            ("UNAVAILABLE SERVERBUG INUSE LIMIT CONTACTADMIN", Refused),
            ("AUTHENTICATIONFAILED AUTHORIZATIONFAILED", AccessDenied),
            ("EXPIRED PRIVACYREQUIRED ALERT", LoginRefused),
        ] {
            for code in codes.split(' ') {
                assert_eq!(refused_login("logging in".into(), &no(code)).failure, failure, "{code}");
            }
        }
    }

    /// RFC 5530 section 3, RFC 3501 section 7.1.
    #[test]
    fn a_refusal_is_what_its_code_says() {
        use MailboxFailure::{NoSuchMailbox, OverQuota, Refused, RefusedForGood};
        for (codes, failure) in [
            ("OVERQUOTA", OverQuota),
            ("TRYCREATE NONEXISTENT", NoSuchMailbox),
            ("CANNOT LIMIT NOPERM", RefusedForGood),
            ("UNAVAILABLE SERVERBUG INUSE CONTACTADMIN", Refused),
        ] {
            for code in codes.split(' ') {
                assert_eq!(no(code).refusal("appending").failure, failure, "{code}");
            }
        }
    }
}
