//! `[web]`: the page, which one process of the service serves by HTTP.

use super::Config;
use super::network::TrustedProxy;
use super::serve::{endpoint, read_endpoint};
use super::source::{ConfigError, Source};
use crate::base::endpoint::Endpoint;
use crate::ledger::web_sessions::WebRole;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use url::Url;

/// A login ends after so long without a request.
pub(crate) const SESSION_IDLE: Duration = Duration::from_hours(12);

/// `[web]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Web {
    /// Where the page is served: the whole path of a unix socket, or `ADDRESS:PORT` of this machine. `None`: nowhere.
    pub listen: Option<String>,
    /// What people type to get there, where a proxy stands in front: scheme, host and port.
    pub public_url: Option<String>,
    /// Whether the REST API is served beside it, to who has a token.
    pub api: bool,
    /// Where the API is served in its stead, by the same process: as `listen`. `None`: at the same place.
    pub api_listen: Option<String>,
    /// What other machines type to get there, where that is another name than the page's.
    pub api_public_url: Option<String>,
    /// Whether it may open mailboxes, with the password of `[imap]`.
    pub mailboxes: bool,
    /// The proxies whose X-Forwarded-For says from where a request comes.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// The header in which the proxy in front says who is logged in to it. `None`: nobody is believed.
    pub trusted_user_header: Option<String>,
    /// What those may do that the proxy names.
    pub trusted_user_roles: BTreeMap<String, WebRole>,
    /// What all others may do that the proxy names; `None`: they are not let in.
    pub trusted_user_role: Option<WebRole>,
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

    /// Where the API is served, if not where the page is.
    #[must_use]
    pub fn api_endpoint(&self) -> Option<Endpoint> {
        self.api_listen.as_deref().filter(|_| self.api).and_then(endpoint)
    }

    /// Where other machines find the API, without a slash at the end. `None` where there is none, or where nobody has said.
    #[must_use]
    pub fn public_api(&self) -> Option<String> {
        let origin = self.public_origin_of_api().filter(|_| self.api && self.has_page())?;
        Some(format!("{origin}/api/v1"))
    }

    fn public_origin_of_api(&self) -> Option<String> {
        self.api_public_url.as_deref().or(self.public_url.as_deref()).and_then(origin_of)
    }

    /// Where a browser finds it: scheme, host and port, without a slash at the end. `None` where there is no page.
    #[must_use]
    pub fn origin(&self) -> Option<String> {
        self.public_url.as_deref().and_then(origin_of).or_else(|| here(&self.endpoint()?))
    }

    /// The same of the API's own place.
    #[must_use]
    pub fn api_origin(&self) -> Option<String> {
        self.public_origin_of_api().or_else(|| here(&self.api_endpoint()?))
    }
}

/// What who is on this machine types.
fn here(endpoint: &Endpoint) -> Option<String> {
    match endpoint {
        Endpoint::Tcp { host, port } if host.contains(':') => Some(format!("http://[{host}]:{port}")),
        Endpoint::Tcp { host, port } => Some(format!("http://{host}:{port}")),
        Endpoint::Socket(_) => None,
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
    /// Whoever can open what the page listens at can say that he is anybody. A socket has an owner and a group.
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

    /// What `[web]` listens at is on this machine, and nobody else's.
    fn check_place(&self, source: &Source<'_>, key: &str, listen: &String) -> Result<(), ConfigError> {
        let endpoint = read_endpoint(source, key, listen, "ADDRESS:PORT")?;
        source.refuse_if(!endpoint.is_on_this_machine(), key, || {
            format!(
                "{listen} can be reached from other machines, and no TLS is spoken there: say 127.0.0.1, or a socket, and put a proxy \
                 with a certificate in front"
            )
        })?;
        let Config { serve, .. } = self;
        // The process that listens may make and remove files in the folder of its socket.
        if let Endpoint::Socket(path) = &endpoint
            && let Some(taken) =
                [&serve.runtime_directory, &serve.state_directory].iter().find(|own| path.starts_with(own))
        {
            let problem = format!(
                "{listen} is in {}, where other processes of the service keep what this one may not reach: choose a folder of its own, such \
                 as /run/maildropd-page",
                taken.display()
            );
            return Err(source.error(key, &problem));
        }
        source.refuse_if(serve.lmtp.contains(listen) || serve.http.as_ref() == Some(listen), key, || {
            format!("{listen} is taken by [serve]: choose another one")
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
