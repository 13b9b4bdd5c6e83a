-- The tables of the ledger of --embedded: those of sql/postgres and sql/mysql in SQLite's idiom. The first delivery makes
-- them.
--
-- Until release 1.0 this file is edited in place, and a database is recreated (docs/upgrade.md). From 1.0 on it stays as it
-- is: a change is another numbered file, which only adds.
--
-- Times are microseconds since 1970, UTC, of this machine's clock, the only one there is:
--   SELECT datetime(started_at / 1000000, 'unixepoch') FROM attempts;
-- There is no table `addresses`: embedded, every address has a Maildir of its own. There are no notifications.

-- The journal. A row is written, and committed, before the lock is taken and before anything is appended.
CREATE TABLE attempts (
    attempt      BLOB    NOT NULL CHECK (length(attempt) = 16),     -- UUID version 7; one for all copies of one delivery
    copy_key     BLOB    NOT NULL CHECK (length(copy_key) = 32),    -- copies.copy_key
    role         TEXT    NOT NULL CHECK (role IN ('recipient', 'sender')),
    imap_user    TEXT    NOT NULL,
    mailbox      TEXT    NOT NULL,
    identity     BLOB    NOT NULL CHECK (length(identity) = 32),    -- messages.identity; an attempt comes before its message
    lock_digest  BLOB    NOT NULL CHECK (length(lock_digest) = 32), -- the name of the lock
    message_id   TEXT    NOT NULL,    -- as it came: also of a message that is never recorded
    recipient    TEXT    NOT NULL,    -- of the delivery: for a Sent copy, the recipient whose delivery makes it
    queue_id     TEXT,                -- Postfix's
    sender       TEXT,                -- of the envelope; '' is the null sender, NULL: not known
    host         TEXT    NOT NULL,
    pid          INTEGER NOT NULL,
    session      INTEGER,             -- NULL: there is no server that could number sessions
    uid_validity INTEGER,             -- the mailbox's position before the append; NULL: there was no mailbox
    uid_next     INTEGER,
    started_at   INTEGER NOT NULL,
    ended_at     INTEGER,             -- NULL: it runs, or the process died
    outcome      TEXT,                -- how it ended: src/ledger/outcome.rs
    stages       TEXT,                -- JSON: milliseconds of each stage, up to the record; NULL while it is open
    PRIMARY KEY (attempt, copy_key)
) STRICT, WITHOUT ROWID;
-- The look: open attempts at a copy, and the age of the first.
CREATE INDEX attempts_by_copy ON attempts (copy_key, ended_at);
-- `trace` by Message-ID, also of a message that was never recorded; the web UI's search; `lock list`; `prune` of messages.
CREATE INDEX attempts_by_lock ON attempts (lock_digest);
-- `trace` by queue id or address, `stats`, `audit`, `prune`, the web UI's lists.
CREATE INDEX attempts_by_time ON attempts (started_at);

-- What is known of a message. The first delivery of any of its copies writes it.
CREATE TABLE messages (
    id             INTEGER PRIMARY KEY,
    -- Days since 1970 of its own Date, big-endian, 0 if unknown; then 28 bytes of SHA-256 over Message-ID and content digest.
    identity       BLOB    NOT NULL UNIQUE CHECK (length(identity) = 32),
    lock_digest    BLOB    NOT NULL CHECK (length(lock_digest) = 32),
    message_id     TEXT    NOT NULL,
    content_digest BLOB    NOT NULL CHECK (length(content_digest) = 32), -- of what the author wrote
    sender         TEXT    NOT NULL,  -- of the envelope; '' is the null sender
    header_from    TEXT,              -- these fields decoded, as the first copy had them
    header_to      TEXT,
    header_cc      TEXT,
    subject        TEXT,
    sent_at        INTEGER,           -- the Date field, as microseconds like every other time here
    headers        TEXT    NOT NULL,  -- JSON: [[name, value], ...]
    size           INTEGER NOT NULL,  -- bytes
    recorded_at    INTEGER NOT NULL
) STRICT;
-- `trace` by Message-ID and `lock list`: once the attempts at a message are pruned, nothing else leads to it.
CREATE INDEX messages_by_message_id ON messages (lock_digest);
-- `stats`, `audit`, `prune`.
CREATE INDEX messages_by_time ON messages (recorded_at);

-- The message as received; only if the operator asked for it.
CREATE TABLE message_sources (
    message_id INTEGER PRIMARY KEY REFERENCES messages (id),
    source     BLOB    NOT NULL
) STRICT;

-- Where each copy is, or that it is owed.
CREATE TABLE copies (
    -- The first four bytes of the message's identity, then 28 bytes of SHA-256 over identity, role, user and mailbox.
    copy_key     BLOB    PRIMARY KEY NOT NULL CHECK (length(copy_key) = 32),
    message      INTEGER NOT NULL REFERENCES messages (id),
    role         TEXT    NOT NULL CHECK (role IN ('recipient', 'sender')),
    imap_user    TEXT    NOT NULL,
    mailbox      TEXT    NOT NULL,
    recipient    TEXT    NOT NULL,    -- of the delivery that made it
    state        TEXT    NOT NULL CHECK (state IN ('delivered', 'owed')),
    uid_validity INTEGER,             -- where it is
    uid          INTEGER,
    reason       TEXT,                -- why it is owed
    delivered_at INTEGER,             -- when it was first recorded as delivered
    updated_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- `trace`, `audit`, `prune`; the foreign key.
CREATE INDEX copies_by_message ON copies (message);
-- `stats`, `audit`, `check`, `replay --owed`, the web UI: the few that are owed.
CREATE INDEX copies_owed ON copies (updated_at) WHERE state = 'owed';

-- Which messages have an address, as on the other engines. An embedded site fills it as it searches.
CREATE TABLE message_addresses (
    message INTEGER NOT NULL, -- messages.id
    address TEXT    NOT NULL, -- folded
    domain  TEXT    NOT NULL,
    role    TEXT    NOT NULL CHECK (role IN ('recipient', 'sender', 'from', 'to', 'cc')),
    PRIMARY KEY (message, address, role)
) STRICT, WITHOUT ROWID;
-- A search for an address, a local part, and what addresses begin with.
CREATE INDEX message_addresses_by_address ON message_addresses (address, message);
-- The same for domains.
CREATE INDEX message_addresses_by_domain ON message_addresses (domain, message);

-- One row: attempts that began before this time are in message_addresses.
CREATE TABLE message_addresses_read (
    id         INTEGER PRIMARY KEY NOT NULL CHECK (id = 1),
    started_at INTEGER NOT NULL
) STRICT;

-- Recipients that were refused for good, as on the other engines. Embedded, every address has a Maildir of its own, so no
-- delivery refuses anybody.
CREATE TABLE unknown_recipients (
    host    TEXT    PRIMARY KEY NOT NULL,
    count   INTEGER NOT NULL,
    in_hour INTEGER NOT NULL,
    last_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Deliveries that failed before their journal: one row for each message and recipient, however often it is tried. Journal,
-- look, audit and replay never read it, and the record never touches it.
CREATE TABLE failures (
    identity    BLOB    NOT NULL CHECK (length(identity) = 32),    -- messages.identity
    recipient   TEXT    NOT NULL,    -- of the envelope
    lock_digest BLOB    NOT NULL CHECK (length(lock_digest) = 32), -- the name of the lock
    sender      TEXT,                -- of the envelope; '' is the null sender, NULL: not known
    author      TEXT,                -- From, decoded
    subject     TEXT,
    message_id  TEXT    NOT NULL,
    queue_id    TEXT,                -- Postfix's, of the last try; so are host and cause
    host        TEXT    NOT NULL,
    cause       TEXT    NOT NULL,    -- src/ledger/outcome.rs
    imap_user   TEXT,                -- of the recipient's mailbox, if it is known
    mailbox     TEXT,
    count       INTEGER NOT NULL,    -- how many tries
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    PRIMARY KEY (identity, recipient)
) STRICT, WITHOUT ROWID;
-- `trace` by Message-ID, the web UI's search.
CREATE INDEX failures_by_lock ON failures (lock_digest);
-- `trace` by queue id or address, `stats`, `prune`, the web UI's list.
CREATE INDEX failures_by_time ON failures (first_at);

-- Links that log in to the web UI, each valid once. Of these, and of sessions, only digests are stored: who reads the tables,
-- or a backup of them, cannot log in with that.
CREATE TABLE web_logins (
    digest     BLOB    PRIMARY KEY NOT NULL CHECK (length(digest) = 32),
    name       TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 64),
    role       TEXT    NOT NULL CHECK (role IN ('viewer', 'reader', 'operator', 'admin')),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE web_sessions (
    digest       BLOB    PRIMARY KEY NOT NULL CHECK (length(digest) = 32),
    name         TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 64),
    role         TEXT    NOT NULL CHECK (role IN ('viewer', 'reader', 'operator', 'admin')),
    created_at   INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL         -- the last request, to the minute
) STRICT, WITHOUT ROWID;

-- Messages that were submitted to the API, as on the other engines. An embedded site has no API.
CREATE TABLE submissions (
    id          TEXT    PRIMARY KEY NOT NULL,
    owner       TEXT    NOT NULL,
    host        TEXT    NOT NULL,
    identity    BLOB    NOT NULL CHECK (length(identity) = 32),
    lock_digest BLOB    NOT NULL CHECK (length(lock_digest) = 32),
    recipients  TEXT    NOT NULL,
    created_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who did what: read a message, delivered it again. A row is written before the act.
CREATE TABLE operations (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    interface  TEXT    NOT NULL,      -- by the web UI, the command line or the API
    role       TEXT,                  -- the role of that person in the web UI
    host       TEXT    NOT NULL,
    operation  TEXT    NOT NULL,
    identity   BLOB    CHECK (length(identity) = 32),
    message_id TEXT,
    imap_user  TEXT,
    mailbox    TEXT,
    target     TEXT,                  -- what else it was done to: a recipient, a login
    outcome    TEXT    NOT NULL       -- in one line; empty: it had only begun, and a later row has the outcome
) STRICT;
