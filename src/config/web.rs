//! `[web]`: the page, which one process of the service serves by HTTP.

use super::serve::endpoint;
use super::servers::NOT_ABSOLUTE;
use super::source::{ConfigError, Source};
use super::{Config, values};
use crate::base::endpoint::Endpoint;
use crate::ledger::web_sessions::WebRole;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use url::Url;

/// `[web]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Web {
    /// Where the page is served: the whole path of a unix socket, or `ADDRESS:PORT` of this machine. `None`: nowhere.
    pub listen: Option<String>,
    /// What people type to get there, where a proxy stands in front: scheme, host and port.
    pub public_url: Option<String>,
    /// The configuration with the page's own role in the database; left out: this one.
    pub config: Option<PathBuf>,
    /// Whether the REST API is served beside it, to who has a token.
    pub api: bool,
    /// Whether it may open mailboxes, with the credentials of its configuration.
    pub mailboxes: bool,
    /// The header in which the proxy in front says who is logged in to it. `None`: nobody is believed.
    pub trusted_user_header: Option<String>,
    /// What those may do that the proxy names.
    pub trusted_user_roles: BTreeMap<String, WebRole>,
    /// What all others may do that the proxy names; `None`: they are not let in.
    pub trusted_user_role: Option<WebRole>,
    /// A login ends after so long without a request.
    #[serde(deserialize_with = "values::duration")]
    pub session_idle: Duration,
}

impl Default for Web {
    fn default() -> Self {
        Self {
            listen: None,
            public_url: None,
            config: None,
            api: false,
            mailboxes: false,
            trusted_user_header: None,
            trusted_user_roles: BTreeMap::new(),
            trusted_user_role: None,
            session_idle: Duration::from_hours(12),
        }
    }
}

impl Web {
    /// Whether there is a page.
    #[must_use]
    pub fn has_page(&self) -> bool {
        self.listen.is_some()
    }

    /// Where it is served.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        // What can be read as none was refused when the configuration was read.
        self.listen.as_deref().and_then(endpoint)
    }

    /// Where other machines find the API, without a slash at the end. `None` where there is none, or where nobody has said.
    #[must_use]
    pub fn public_api(&self) -> Option<String> {
        let origin = self.public_url.as_deref().and_then(origin_of).filter(|_| self.api && self.has_page())?;
        Some(format!("{origin}/api/v1"))
    }

    /// Where a browser finds it: scheme, host and port, without a slash at the end. `None` where there is no page.
    #[must_use]
    pub fn origin(&self) -> Option<String> {
        let public = self.public_url.as_deref().and_then(origin_of);
        public.or_else(|| match self.endpoint()? {
            Endpoint::Tcp { host, port } if host.contains(':') => Some(format!("http://[{host}]:{port}")),
            Endpoint::Tcp { host, port } => Some(format!("http://{host}:{port}")),
            Endpoint::Socket(_) => None,
        })
    }
}

/// `https://mail.example.com` of a URL that has nothing behind its host and port.
fn origin_of(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let nobody = url.username().is_empty() && url.password().is_none();
    let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
    // The cookie of a login is sent by TLS only, or to this machine.
    let safe = match url.scheme() {
        "https" => !host.is_empty(),
        "http" => Endpoint::Tcp { host, port: 80 }.is_on_this_machine(),
        _ => false,
    };
    (bare && nobody && safe).then(|| url.origin().ascii_serialization())
}

/// Whether a header has a name, and one that browsers do not send by themselves.
fn is_free_header(name: &str) -> bool {
    // `tchar` of RFC 9110 section 5.6.2, as far as anybody uses them; all digits or signs is no name.
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    let taken = [
        "authorization",
        "cookie",
        "connection",
        "content-",
        "accept",
        "host",
        "origin",
        "referer",
        "sec-",
        "user-agent",
    ];
    let folded = name.to_ascii_lowercase();
    let is_taken = |taken: &&str| folded == **taken || taken.ends_with('-') && folded.starts_with(*taken);
    plain && folded.starts_with(|first: char| first.is_ascii_alphabetic()) && !taken.iter().any(is_taken)
}

/// The longest name of somebody whom a proxy has let in.
const LONGEST_NAME: usize = 64;

/// Whether a proxy may say that this is somebody's name: no `-` or `(null)`, as they send for nobody (Apache), nor two names that one
/// of them has put together by a comma.
pub(crate) fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_alphanumeric();
    name.chars().count() <= LONGEST_NAME
        && name.starts_with(letter)
        && name.chars().all(|c| letter(c) || matches!(c, '.' | '_' | '-' | '@' | '+' | '\\'))
}

impl Config {
    /// The configuration that the page goes by: the file that `web.config` names, or this one.
    ///
    /// # Errors
    /// Where that file cannot be read, is not in order, or is for another site. Its passwords are not read yet.
    pub(crate) fn of_page(&self) -> Result<Self, ConfigError> {
        self.of_the_same_site(self.web.config.as_deref(), "web.config")
    }

    /// Whoever can open what the page listens at can say that he is anybody. A socket has an owner and a group.
    fn check_trusted_users(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let web = &self.web;
        let wrong = |key: &str, problem: &str| Err(source.error(&["web", key], problem));
        let Some(header) = &web.trusted_user_header else {
            let without = "it means nothing without trusted_user_header";
            if !web.trusted_user_roles.is_empty() {
                return wrong("trusted_user_roles", without);
            }
            return if web.trusted_user_role.is_some() { wrong("trusted_user_role", without) } else { Ok(()) };
        };
        if !is_free_header(header) {
            let problem = format!(
                "{header:?} is no header that a proxy may say this in: choose one that no browser sends, such as \"X-Forwarded-User\""
            );
            return wrong("trusted_user_header", &problem);
        }
        if matches!(web.endpoint(), Some(Endpoint::Tcp { .. })) {
            let problem = "everybody on this machine can reach a port, and say that he is anybody: let web.listen be the whole path of a \
                           socket, in a folder that only the proxy may enter";
            return wrong("trusted_user_header", problem);
        }
        if web.trusted_user_roles.is_empty() && web.trusted_user_role.is_none() {
            return wrong("trusted_user_header", "nobody has a role: say trusted_user_roles, or trusted_user_role");
        }
        if let Some(name) = web.trusted_user_roles.keys().find(|name| !is_name(name)) {
            let problem = format!(
                "{name:?} is nobody's name: a name has at most {LONGEST_NAME} letters, digits and . _ - @ + \\, and begins with a letter or a digit"
            );
            return wrong("trusted_user_roles", &problem);
        }
        Ok(())
    }

    pub(super) fn check_web(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let web = &self.web;
        let wrong = |key: &str, problem: &str| Err(source.error(&["web", key], problem));
        if web.config.as_ref().is_some_and(|path| !path.is_absolute()) {
            return wrong("config", NOT_ABSOLUTE);
        }
        if web.session_idle.is_zero() {
            return wrong("session_idle", "0 would end each login at once: the default is \"12h\"");
        }
        if let Some(public) = web.public_url.as_deref().filter(|text| origin_of(text).is_none()) {
            let problem = format!(
                "{public:?} is no address of a site: write \"https://mail.example.com/\"; the page wants TLS, and a host name of its \
                 own, without a path"
            );
            return wrong("public_url", &problem);
        }
        self.check_trusted_users(source)?;
        let Some(listen) = &web.listen else { return Ok(()) };
        let Some(endpoint) = endpoint(listen) else {
            return wrong("listen", &format!("{listen:?} is neither the whole path of a socket nor ADDRESS:PORT"));
        };
        if !endpoint.is_on_this_machine() {
            let problem = format!(
                "{listen} can be reached from other machines, and the page speaks no TLS: say 127.0.0.1, or a socket, and put a proxy \
                 with a certificate in front"
            );
            return wrong("listen", &problem);
        }
        if matches!(endpoint, Endpoint::Socket(_)) && web.public_url.is_none() {
            return wrong(
                "public_url",
                "it is missing: no browser reaches a socket, so name the address of the proxy in front of it",
            );
        }
        if self.serve.lmtp.contains(listen) || self.serve.http.as_ref() == Some(listen) {
            return wrong("listen", &format!("{listen} is taken by [serve]: choose another one"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_finds_it_by_the_proxys_address_or_by_its_own() {
        let origin = |listen: &str, public: Option<&str>| {
            let web = Web { listen: Some(listen.into()), public_url: public.map(Into::into), ..Web::default() };
            web.origin()
        };
        let proxy = Some("https://Mail.Example.com/");
        assert_eq!(origin("/run/web.sock", proxy).as_deref(), Some("https://mail.example.com"));
        assert_eq!(origin("127.0.0.1:8025", Some("https://m.example.com:444")).unwrap(), "https://m.example.com:444");
        assert_eq!(origin("127.0.0.1:8025", None).as_deref(), Some("http://127.0.0.1:8025"));
        assert_eq!(origin("/run/web.sock", Some("http://[::1]:80/")).as_deref(), Some("http://[::1]"));
        assert_eq!(origin("[::1]:8025", None).as_deref(), Some("http://[::1]:8025"));
        for wrong in [
            "mail.example.com",
            "https://x/y",
            "https://a@x/",
            "ftp://x/",
            "http://mail.example.com/",
            "https://x/?y",
            "https://x/#y",
        ] {
            assert_eq!(origin_of(wrong), None, "{wrong}");
        }
    }
}
