//! Passwords.

use std::fmt;

/// A password. It never shows itself in a log, an error or a panic.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The password itself, for the code that sends it to a server.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_shows_itself_only_where_it_is_asked_to() {
        let secret = Secret::new("abc".into());
        assert_eq!((secret.expose(), format!("{secret:?}").as_str()), ("abc", "Secret(…)"));
    }
}
