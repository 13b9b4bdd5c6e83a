//! Callback URLs, and the addresses at which they may be called.

use super::networks::is_public;
use crate::config::Notifications;
use std::net::{IpAddr, SocketAddr};
use thiserror::Error;
use url::{Host, Url};

/// The longest URL, in bytes.
const LONGEST: usize = 2048;

/// A URL that may be called, as far as the URL itself shows. The addresses of a host name are checked at each lookup,
/// because they can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callback {
    url: Url,
    host: Host<String>,
    port: u16,
}

/// Why a callback is not called. The owner of the subscription sees the text, so it contains nothing about our networks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    #[error("this is no URL: {0}")]
    NoUrl(url::ParseError),
    #[error("it is longer than 2048 bytes")]
    TooLong,
    #[error("only https is called here")]
    Scheme,
    #[error("a name or password belongs into no URL")]
    UserInfo,
    #[error("what follows the # would never be sent")]
    Fragment,
    #[error("port {0} is not called here")]
    Port(u16),
    #[error("this address is not of the public Internet")]
    Address,
}

impl Callback {
    /// Parses a URL. All spellings of an address become one, so that none escapes the check.
    ///
    /// # Errors
    /// If the URL may not be called, whatever its host name resolves to.
    pub fn parse(text: &str, rules: &Notifications) -> Result<Self, Refused> {
        if text.len() > LONGEST {
            return Err(Refused::TooLong);
        }
        let url = Url::parse(text).map_err(Refused::NoUrl)?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(Refused::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::UserInfo);
        }
        if url.fragment().is_some() {
            return Err(Refused::Fragment);
        }
        // URLs of these schemes always have a host and a port.
        let host = url.host().ok_or(Refused::NoUrl(url::ParseError::EmptyHost))?.to_owned();
        let port = url.port_or_known_default().ok_or(Refused::Port(0))?;
        let callback = Self { url, host, port };
        match callback.host {
            Host::Ipv4(address) => callback.judge(address.into(), rules)?,
            Host::Ipv6(address) => callback.judge(address.into(), rules)?,
            // Otherwise the name may resolve to an address in an allowed network, where scheme and port do not matter.
            Host::Domain(_) if rules.allow_networks.is_empty() => callback.judge_public(rules)?,
            Host::Domain(_) => {}
        }
        Ok(callback)
    }

    /// Checks whether the callback may be called at this address.
    ///
    /// # Errors
    /// If it may not.
    pub fn judge(&self, address: IpAddr, rules: &Notifications) -> Result<(), Refused> {
        if rules.allow_networks.iter().any(|network| network.contains(address)) {
            return Ok(());
        }
        self.judge_public(rules)?;
        if is_public(address) { Ok(()) } else { Err(Refused::Address) }
    }

    /// The addresses, of those given, at which the callback may be called.
    ///
    /// # Errors
    /// If the callback may be called at none of them.
    pub fn may_be_called_at(&self, addresses: &[IpAddr], rules: &Notifications) -> Result<Vec<SocketAddr>, Refused> {
        let judged = addresses.iter().map(|address| (address, self.judge(*address, rules)));
        let mut refused = Refused::Address;
        let allowed = judged.filter_map(|(address, judged)| match judged {
            Ok(()) => Some(SocketAddr::new(*address, self.port)),
            Err(why) => {
                refused = why;
                None
            }
        });
        let allowed: Vec<_> = allowed.collect();
        if allowed.is_empty() { Err(refused) } else { Ok(allowed) }
    }

    fn judge_public(&self, rules: &Notifications) -> Result<(), Refused> {
        if !self.is_encrypted() && !rules.allow_http {
            return Err(Refused::Scheme);
        }
        if rules.allow_ports.contains(&self.port) { Ok(()) } else { Err(Refused::Port(self.port)) }
    }

    /// Whether it is called over TLS.
    pub fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// A name, or an address.
    pub fn host(&self) -> &Host<String> {
        &self.host
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// The value of the header `host`.
    pub fn authority(&self) -> String {
        // Without the scheme's own port.
        self.url.port().map_or_else(|| self.host.to_string(), |port| format!("{}:{port}", self.host))
    }

    /// The request target: path and query.
    pub fn path(&self) -> String {
        self.url.query().map_or_else(|| self.url.path().to_owned(), |query| format!("{}?{query}", self.url.path()))
    }
}

/// Spellings of this machine: loopback plain, short, decimal, octal, hexadecimal, mixed, with a dot at its end, and in
/// full-width digits. The unspecified address is one, too: connect(2) takes it for this machine.
#[cfg(test)]
pub(crate) const THIS_MACHINE: &[&str] = &[
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "0x7f.0x0.0x0.0x1",
    "127.0.0.1.",
    "127.255.255.254",
    "１２７.0.0.1",
    "%31%32%37.0.0.1",
    "127。0。0。1",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000::0001]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "0",
    "0.0.0.0",
    "0x0",
    "[::]",
];

/// Other machines outside the public Internet, and this machine wrapped in another kind of address.
#[cfg(test)]
pub(crate) const NOT_PUBLIC: &[&str] = &[
    // The addresses from which clouds give out credentials.
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "[::ffff:169.254.169.254]",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    "[fd00:42::42]",
    "[fe80::a9fe:a9fe]",
    "168.63.129.16",
    "0xa83f8110",
    "[::ffff:168.63.129.16]",
    "[64:ff9b::168.63.129.16]",
    "100.100.100.200",
    "169.254.42.42",
    "192.0.0.192",
    // Wrapped in another one: NAT64, 6to4, Teredo, ISATAP.
    "[64:ff9b::7f00:1]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b:1::a00:1]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:7f00:1::]",
    "[fe80::5efe:127.0.0.1]",
    // Our own networks.
    "10.0.0.1",
    "10.1",
    "012.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "192.168.257",
    "3232235521",
    "100.64.0.1",
    "[fc00::1]",
    "[fd12:3456::1]",
    "[fe80::1]",
    "[fec0::1]",
    // Networks for documentation, benchmarks, protocols, multicast, reserved use and broadcast.
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "4294967295",
    "[2001:db8::1]",
    "[3fff::1]",
    "[5f00::1]",
    "[100::1]",
    "[ff02::1]",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn strict() -> Notifications {
        Notifications { allow_http: false, allow_ports: vec![443], ..Notifications::default() }
    }

    #[test]
    fn a_public_callback_is_taken_apart() {
        let callback = Callback::parse("https://Hooks.Example.com/in/1?a=b%20c", &strict()).unwrap();
        assert_eq!(callback.authority(), "hooks.example.com");
        assert_eq!((callback.path(), callback.port), ("/in/1?a=b%20c".into(), 443));
        let mut rules = strict();
        rules.allow_ports.push(8443);
        let callback = Callback::parse("https://[2606:4700::1111]:8443", &rules).unwrap();
        assert_eq!((callback.authority(), callback.path()), ("[2606:4700::1111]:8443".into(), "/".into()));
        // A non-ASCII name is looked up in its DNS form.
        let callback = Callback::parse("https://bücher.example/", &strict()).unwrap();
        assert_eq!(callback.authority(), "xn--bcher-kva.example");
    }

    /// Every spelling is refused: the URL is parsed once, and the parsed form is called.
    #[test]
    fn no_spelling_of_an_address_that_is_not_public_is_taken() {
        assert!(THIS_MACHINE.len() + NOT_PUBLIC.len() > 60);
        for address in THIS_MACHINE.iter().chain(NOT_PUBLIC) {
            for path in ["", "/", ":443/in"] {
                let refused = Callback::parse(&format!("https://{address}{path}"), &strict());
                assert_eq!(refused, Err(Refused::Address), "{address}{path}");
            }
        }
    }

    #[test]
    fn what_is_no_callback_is_reported_by_its_fault() {
        for (text, why) in [
            ("http://example.com/", Refused::Scheme),
            ("ftp://example.com/", Refused::Scheme),
            ("file:///etc/passwd", Refused::Scheme),
            ("gopher://example.com:443/", Refused::Scheme),
            ("https://anna@example.com/", Refused::UserInfo),
            ("https://:secret@example.com/", Refused::UserInfo),
            ("https://example.com@127.0.0.1/", Refused::UserInfo),
            ("https://example.com/#in", Refused::Fragment),
            ("https://example.com:8443/", Refused::Port(8443)),
            ("https://example.com:25/", Refused::Port(25)),
            // In a URL a backslash is a slash, and a tab is ignored.
            (r"https:\\127.0.0.1\in", Refused::Address),
            ("https://127.0.0.1\t/", Refused::Address),
            ("https://127.0.0.1\\@example.com/", Refused::Address),
        ] {
            assert_eq!(Callback::parse(text, &strict()), Err(why), "{text}");
        }
        for text in [
            "",
            "/in",
            "https://",
            "https://exa mple/",
            "https://[fe80::1%25eth0]/",
            "https://1.2.3.4.5/",
            "https://256.1.1.1/",
        ] {
            assert!(matches!(Callback::parse(text, &strict()), Err(Refused::NoUrl(_))), "{text}");
        }
        let of = |length: usize| format!("{:x<length$}", "https://example.com/");
        assert_eq!(Callback::parse(&of(LONGEST + 1), &strict()), Err(Refused::TooLong));
        assert!(Callback::parse(&of(LONGEST), &strict()).is_ok());
    }

    #[test]
    fn a_network_of_our_own_that_is_allowed_may_be_called_by_http_at_any_port() {
        let rules = Notifications { allow_networks: vec!["10.1.0.0/16".parse().unwrap()], ..strict() };
        Callback::parse("http://10.1.2.3:8080/in", &rules).unwrap();
        assert_eq!(Callback::parse("http://10.2.0.1:8080/in", &rules), Err(Refused::Scheme));
        assert_eq!(Callback::parse("https://10.2.0.1/in", &rules), Err(Refused::Address));
        // The address of a name is checked when the name is looked up.
        let named = Callback::parse("http://hooks.internal:8080/in", &rules).unwrap();
        let at = |addresses: [&str; 2]| named.may_be_called_at(&addresses.map(|text| text.parse().unwrap()), &rules);
        assert_eq!(at(["10.1.2.3", "10.2.0.1"]), Ok(vec!["10.1.2.3:8080".parse().unwrap()]));
        assert_eq!(at(["127.0.0.1", "93.184.216.34"]), Err(Refused::Scheme));
        let encrypted = Callback::parse("https://hooks.example.com/in", &rules).unwrap();
        let mixed = ["127.0.0.1", "93.184.216.34"].map(|text| text.parse().unwrap());
        assert_eq!(encrypted.may_be_called_at(&mixed, &rules), Ok(vec!["93.184.216.34:443".parse().unwrap()]));
        assert_eq!(encrypted.may_be_called_at(&mixed[..1], &rules), Err(Refused::Address));
        assert!(encrypted.is_encrypted() && !named.is_encrypted());
        // `allow_http` allows HTTP to every host.
        let open = Notifications { allow_http: true, allow_ports: vec![80], ..strict() };
        assert!(Callback::parse("http://hooks.example.com/in", &open).is_ok());
    }
}
