//! Why a mailbox gets a copy of a message.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The envelope recipient's INBOX.
    Recipient,
    /// The author's Sent mailbox.
    Sender,
}

impl Role {
    /// As the ledger and the log store it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recipient => "recipient",
            Self::Sender => "sender",
        }
    }

    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Recipient, Self::Sender].into_iter().find(|role| role.as_str() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_by_the_word_that_the_ledger_has() {
        for (role, word) in [(Role::Recipient, "recipient"), (Role::Sender, "sender")] {
            assert_eq!((role.as_str(), Role::parse(word)), (word, Some(role)));
        }
        assert_eq!(Role::parse("author"), None);
    }
}
