//! `[web]`: the web UI, which one process of the service serves by HTTP.

use super::Config;
use super::network::TrustedProxy;
use super::service::read_endpoint;
use super::source::{ConfigError, Source};
use crate::base::endpoint::Endpoint;
use crate::ledger::web_sessions::WebRole;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use url::Url;

/// A session ends after this time without a request.
pub(crate) const SESSION_IDLE: Duration = Duration::from_hours(12);

/// `[web]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Web {
    /// The endpoint of the web UI, if it is served: the absolute path of a unix socket, or `ADDRESS:PORT` of this machine.
    pub listen: Option<String>,
    /// The URL that people type if there is a proxy: scheme, host and port.
    pub public_url: Option<String>,
    /// Whether the REST API is served as well, to clients with a token.
    pub api: bool,
    /// A separate endpoint for the API, served by the same process, in the form of `listen`. `None` for that of the web UI.
    pub api_listen: Option<String>,
    /// The URL of the API for other machines, if it differs from that of the web UI.
    pub api_public_url: Option<String>,
    /// Whether the web process may open mailboxes, with the password of `[imap]`.
    pub allow_mailbox_access: bool,
    /// The proxies whose X-Forwarded-For gives the client's address.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// The header in which the proxy names its logged-in user. `None` if no such header is trusted.
    pub trusted_user_header: Option<String>,
    /// The roles of the users that the proxy names.
    pub trusted_user_roles: BTreeMap<String, WebRole>,
    /// The role of all other users that the proxy names; `None` if they are refused.
    pub trusted_user_role: Option<WebRole>,
}

impl Web {
    /// Whether the web UI is served.
    pub fn has_web_ui(&self) -> bool {
        self.listen.is_some()
    }

    pub fn endpoint(&self) -> Option<Endpoint> {
        // An unreadable value was refused when the configuration was read.
        self.listen.as_deref().and_then(|text| Endpoint::parse(text, None))
    }

    /// The endpoint of the API, if it is not that of the web UI.
    pub fn api_endpoint(&self) -> Option<Endpoint> {
        self.api_listen.as_deref().filter(|_| self.api).and_then(|text| Endpoint::parse(text, None))
    }

    /// The URL of the API for other machines, without a slash at the end. `None` if there is no API, or no public URL is
    /// configured.
    pub fn public_api(&self) -> Option<String> {
        let origin = self.public_origin_of_api().filter(|_| self.api && self.has_web_ui())?;
        Some(format!("{origin}/api/v1"))
    }

    fn public_origin_of_api(&self) -> Option<String> {
        self.api_public_url.as_deref().or(self.public_url.as_deref()).and_then(origin_of)
    }

    /// The origin of the web UI: scheme, host and port, without a slash at the end. `None` if there is no web UI.
    pub fn origin(&self) -> Option<String> {
        self.public_url.as_deref().and_then(origin_of).or_else(|| here(&self.endpoint()?))
    }

    /// The origin of the API: its public one, or that of its own endpoint.
    pub fn api_origin(&self) -> Option<String> {
        self.public_origin_of_api().or_else(|| here(&self.api_endpoint()?))
    }
}

/// The origin that a browser on this machine uses.
fn here(endpoint: &Endpoint) -> Option<String> {
    match endpoint {
        Endpoint::Tcp { host, port } if host.contains(':') => Some(format!("http://[{host}]:{port}")),
        Endpoint::Tcp { host, port } => Some(format!("http://{host}:{port}")),
        Endpoint::Socket(_) => None,
    }
}

/// The origin of a URL, such as `https://mail.example.com`; `None` if the URL has anything after its host and port.
fn origin_of(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let nobody = url.username().is_empty() && url.password().is_none();
    let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
    // A browser sends the login cookie only over TLS, or to this machine.
    let safe = match url.scheme() {
        "https" => !host.is_empty(),
        "http" => Endpoint::Tcp { host, port: 80 }.is_on_this_machine(),
        _ => false,
    };
    (bare && nobody && safe).then(|| url.origin().ascii_serialization())
}

/// Whether a header name is valid, and not one that browsers send by themselves.
fn is_free_header(name: &str) -> bool {
    // `tchar` of RFC 9110 section 5.6.2, without its rare characters. A name needs a letter.
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    let taken = "authorization cookie connection content- accept host origin referer sec- user-agent";
    let folded = name.to_ascii_lowercase();
    let is_taken = |taken: &str| folded == taken || taken.ends_with('-') && folded.starts_with(taken);
    plain && folded.starts_with(|first: char| first.is_ascii_alphabetic()) && !taken.split(' ').any(is_taken)
}

/// The longest user name that a proxy may send, in characters.
const LONGEST_NAME: usize = 64;

/// Whether a proxy may send this as a user name. `-` and `(null)` are refused, because Apache sends them for no user, and so
/// is a comma, by which proxies join two names.
pub(crate) fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_alphanumeric();
    name.chars().count() <= LONGEST_NAME
        && name.starts_with(letter)
        && name.chars().all(|c| letter(c) || matches!(c, '.' | '_' | '-' | '@' | '+' | '\\'))
}

impl Config {
    /// A client that connects to the web UI's endpoint can claim to be any user. So the endpoint must be a socket, whose
    /// folder only the proxy may enter.
    fn check_trusted_users(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let Web { trusted_user_header, trusted_user_roles: roles, trusted_user_role: role, .. } = &self.web;
        let Some(header) = trusted_user_header else {
            let without = "it means nothing without trusted_user_header";
            return source.section("web").refuse_first(&[
                (!roles.is_empty(), "trusted_user_roles", without),
                (role.is_some(), "trusted_user_role", without),
            ]);
        };
        source.refuse_if(!is_free_header(header), "web.trusted_user_header", || {
            format!(
                "{header:?} is no header that a proxy may say this in: choose one that no browser sends, such as \"X-Forwarded-User\""
            )
        })?;
        let is_port = matches!(self.web.endpoint(), Some(Endpoint::Tcp { .. }));
        let no_role = roles.is_empty() && role.is_none();
        let reachable = "everybody on this machine can reach a port, and say that he is anybody: let web.listen be the whole path of a \
                         socket, in a folder that only the proxy may enter";
        source.section("web").refuse_first(&[
            (is_port, "trusted_user_header", reachable),
            (no_role, "trusted_user_header", "nobody has a role: say trusted_user_roles, or trusted_user_role"),
        ])?;
        let Some(name) = roles.keys().find(|name| !is_name(name)) else { return Ok(()) };
        let problem = format!(
            "{name:?} is nobody's name: a name has at most {LONGEST_NAME} letters, digits and . _ - @ + \\, and begins with a letter or a digit"
        );
        Err(source.error("web.trusted_user_roles", &problem))
    }

    pub(super) fn check_web(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let web = &self.web;
        for (key, public) in [("web.public_url", &web.public_url), ("web.api_public_url", &web.api_public_url)] {
            let Some(public) = public else { continue };
            source.refuse_if(origin_of(public).is_none(), key, || {
                format!(
                    "{public:?} is no address of a site: write \"https://mail.example.com/\"; it wants TLS, and a host name of its \
                     own, without a path"
                )
            })?;
        }
        self.check_trusted_users(source)?;
        self.check_place_of_api(source)?;
        let Some(listen) = &web.listen else { return Ok(()) };
        self.check_place(source, "web.listen", listen)?;
        let is_socket = matches!(web.endpoint(), Some(Endpoint::Socket(_)));
        let unreachable = "it is missing: no browser reaches a socket, so name the address of the proxy in front of it";
        source.section("web").refuse_first(&[(is_socket && web.public_url.is_none(), "public_url", unreachable)])
    }

    /// Checks that an endpoint of `[web]` is on this machine, and is used for nothing else.
    fn check_place(&self, source: &Source<'_>, key: &str, listen: &String) -> Result<(), ConfigError> {
        let endpoint = read_endpoint(source, key, listen, "ADDRESS:PORT")?;
        source.refuse_if(!endpoint.is_on_this_machine(), key, || {
            format!(
                "{listen} can be reached from other machines, and no TLS is spoken there: say 127.0.0.1, or a socket, and put a proxy \
                 with a certificate in front"
            )
        })?;
        let Config { service, .. } = self;
        // The process that listens may create and remove files in its socket's folder.
        if let Endpoint::Socket(path) = &endpoint
            && let Some(taken) =
                [&service.runtime_directory, &service.state_directory].iter().find(|own| path.starts_with(own))
        {
            let problem = format!(
                "{listen} is in {}, where other processes of the service keep what this one may not reach: choose a folder of its own, such \
                 as /run/maildropd-page",
                taken.display()
            );
            return Err(source.error(key, &problem));
        }
        source.refuse_if(service.lmtp.contains(listen) || service.http.as_ref() == Some(listen), key, || {
            format!("{listen} is taken by [service]: choose another one")
        })
    }

    fn check_place_of_api(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        let web = &self.web;
        let Some(listen) = &web.api_listen else {
            let without = "it means nothing without api_listen: beside the page the API has the page's name";
            return source.section("web").refuse_first(&[(web.api_public_url.is_some(), "api_public_url", without)]);
        };
        source.section("web").refuse_first(&[
            (!web.api, "api_listen", "it means nothing without api = true"),
            (web.listen.is_none(), "api_listen", "the API is served by the process of the page: say listen, too"),
        ])?;
        self.check_place(source, "web.api_listen", listen)?;
        let unreachable = "it is missing: nobody on another machine reaches a socket, so name the address of the proxy in front of it";
        source.section("web").refuse_first(&[
            (
                web.listen.as_ref() == Some(listen),
                "api_listen",
                "the page is there: leave it out, or choose another one",
            ),
            (web.api_origin().is_none(), "api_public_url", unreachable),
        ])
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

    #[test]
    fn the_api_is_found_by_its_own_name_where_it_has_one_and_by_the_pages_where_it_has_none() {
        let site = |api_listen: Option<&str>, api_public: Option<&str>, public: Option<&str>| {
            let of = |text: Option<&str>| text.map(str::to_owned);
            let (listen, api_listen) = (of(Some("127.0.0.1:8025")), of(api_listen));
            let web = Web { listen, api: true, api_listen, ..Web::default() };
            Web { api_public_url: of(api_public), public_url: of(public), ..web }
        };
        let found = |web: &Web| (web.api_origin(), web.public_api());
        let (page, own) = (Some("https://mail.example.com/"), Some("https://hooks.example.com/"));
        let at = |origin: &str| (Some(origin.to_owned()), Some(format!("{origin}/api/v1")));
        let port = Some("127.0.0.1:8026");
        assert_eq!(found(&site(port, own, page)), at("https://hooks.example.com"));
        assert_eq!(found(&site(port, None, page)), at("https://mail.example.com"));
        assert_eq!(found(&site(port, None, None)), (Some("http://127.0.0.1:8026".into()), None));
        assert_eq!(found(&site(Some("/run/api.sock"), None, None)), (None, None));
        assert_eq!(site(port, own, page).origin().as_deref(), Some("https://mail.example.com"));
        let none = Web { api: false, ..site(port, own, page) };
        assert_eq!((none.api_endpoint(), none.public_api()), (None, None));
    }
}
