-- The ledger: where addresses lead, what was tried, what was done.
--
-- Every statement of a delivery finds its rows by one of the indexes below; there is no index that no delivery uses,
-- except the one for people who ask for a message by its Message-ID.

-- Filled by the platform; a delivery only reads it.
CREATE TABLE addresses (
    address   varchar(320) PRIMARY KEY,
    imap_user varchar(255) NOT NULL,
    inbox     varchar(255) NOT NULL DEFAULT 'INBOX',
    sent      varchar(255) NOT NULL DEFAULT 'Sent',
    -- A delivery asks in lower case. An address stored otherwise would never be found, and its mail would be refused.
    CONSTRAINT addresses_lower_case CHECK (address = lower(address))
);
COMMENT ON TABLE addresses IS 'Which IMAP user an address belongs to, and the mailboxes for what arrives and what is sent';

-- The journal. A row is written, and committed, before anything is appended; ended_at stays NULL if the process dies.
CREATE TABLE attempts (
    copy_key     bytea       NOT NULL,
    attempt      uuid        NOT NULL,
    role         text        NOT NULL,
    imap_user    text        NOT NULL,
    mailbox      text        NOT NULL,
    identity     bytea       NOT NULL,
    lock_digest  bytea       NOT NULL,
    message_id   text        NOT NULL,
    recipient    text        NOT NULL,
    queue_id     text,
    host         text        NOT NULL,
    pid          bigint      NOT NULL,
    session      bigint,
    uid_validity bigint,
    uid_next     bigint,
    started_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    outcome      text,
    -- One index serves everything that a delivery asks: the attempts at a copy, and one attempt at it. A copy has as
    -- many attempts as Postfix makes (some 130 in five days), so ended ones need no index to be told apart; and as
    -- ended_at is in no index, ending an attempt touches none (a HOT update, given room in the page).
    PRIMARY KEY (copy_key, attempt)
) WITH (fillfactor = 70);
COMMENT ON TABLE attempts IS 'One row per copy that a process set out to deliver; open until ended_at is set';
COMMENT ON COLUMN attempts.lock_digest IS 'The lock''s name; its first 8 bytes, big-endian, are the advisory lock''s key';
COMMENT ON COLUMN attempts.session IS 'The server process (pg_stat_activity.pid) that wrote the row';

CREATE TABLE messages (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    identity       bytea       NOT NULL UNIQUE,
    lock_digest    bytea       NOT NULL,
    message_id     text        NOT NULL,
    content_digest bytea       NOT NULL,
    sender         text        NOT NULL,
    header_from    text,
    header_to      text,
    header_cc      text,
    subject        text,
    sent_at        timestamptz,
    headers        jsonb       NOT NULL,
    size           bigint      NOT NULL,
    recorded_at    timestamptz NOT NULL
);
CREATE INDEX messages_lock_digest ON messages (lock_digest);
COMMENT ON TABLE messages IS 'What is known of a message: (Message-ID, digest of what its author wrote) is its identity';
COMMENT ON COLUMN messages.sender IS 'The envelope sender; empty for the null sender';
COMMENT ON COLUMN messages.headers IS 'All header fields in their order: [["Name", "value"], ...]';

-- The message as received; only with record.raw.
CREATE TABLE message_sources (
    message_id bigint PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    source     bytea  NOT NULL
);

CREATE TABLE copies (
    copy_key     bytea       PRIMARY KEY,
    message      bigint      NOT NULL REFERENCES messages (id),
    role         text        NOT NULL,
    imap_user    text        NOT NULL,
    mailbox      text        NOT NULL,
    recipient    text        NOT NULL,
    state        text        NOT NULL,
    uid_validity bigint,
    uid          bigint,
    reason       text,
    delivered_at timestamptz,
    updated_at   timestamptz NOT NULL
);
CREATE INDEX copies_message ON copies (message);
CREATE INDEX copies_owed ON copies (updated_at) WHERE state = 'owed';
COMMENT ON TABLE copies IS 'One row per (message, user, mailbox, role): delivered, and where; or owed, and why';
