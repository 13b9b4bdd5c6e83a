-- What deliver.py writes, in the database that holds `addresses`.
CREATE TABLE IF NOT EXISTS article_messages (
    message_id text PRIMARY KEY,
    sender text,
    subject text,
    size bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS article_copies (
    message_id text NOT NULL REFERENCES article_messages,
    imap_user text NOT NULL,
    mailbox text NOT NULL,
    PRIMARY KEY (message_id, imap_user, mailbox)
);
