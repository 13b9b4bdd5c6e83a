//! Why a mailbox gets a copy of a message.

/// Why this mailbox gets a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The envelope recipient's INBOX.
    Recipient,
    /// The author's Sent mailbox.
    Sender,
}

impl Role {
    /// The word that the ledger and the log use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recipient => "recipient",
            Self::Sender => "sender",
        }
    }

    /// The role that the ledger's word says.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Recipient, Self::Sender].into_iter().find(|role| role.as_str() == word)
    }
}
