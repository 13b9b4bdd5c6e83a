-- The ledger of --embedded: the tables of sql/postgres and sql/mysql in SQLite's idiom.
--
-- Times are microseconds since 1970, UTC, of this machine's clock, the only one there is:
--   SELECT datetime(started_at / 1000000, 'unixepoch') FROM attempts;
-- There is no table `addresses`: embedded, every address has a Maildir of its own.

-- The journal: a row per copy that a process set out to deliver, written before it took the lock.
CREATE TABLE attempts (
    attempt      BLOB    NOT NULL CHECK (length(attempt) = 16),
    copy_key     BLOB    NOT NULL CHECK (length(copy_key) = 32),
    role         TEXT    NOT NULL CHECK (role IN ('recipient', 'sender')),
    imap_user    TEXT    NOT NULL,
    mailbox      TEXT    NOT NULL,
    identity     BLOB    NOT NULL CHECK (length(identity) = 32),
    lock_digest  BLOB    NOT NULL CHECK (length(lock_digest) = 32),
    message_id   TEXT    NOT NULL,
    recipient    TEXT    NOT NULL,
    queue_id     TEXT,
    host         TEXT    NOT NULL,
    pid          INTEGER NOT NULL,
    session      INTEGER,             -- NULL: there is no server that could number sessions
    uid_validity INTEGER,
    uid_next     INTEGER,
    started_at   INTEGER NOT NULL,
    ended_at     INTEGER,             -- NULL: it runs now, or it died
    outcome      TEXT,
    PRIMARY KEY (attempt, copy_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX attempts_by_copy ON attempts (copy_key, ended_at);

CREATE TABLE messages (
    id             INTEGER PRIMARY KEY,
    identity       BLOB    NOT NULL UNIQUE CHECK (length(identity) = 32),
    lock_digest    BLOB    NOT NULL CHECK (length(lock_digest) = 32),
    message_id     TEXT    NOT NULL,
    content_digest BLOB    NOT NULL CHECK (length(content_digest) = 32),
    sender         TEXT    NOT NULL,  -- of the envelope; '' is the null sender
    header_from    TEXT,
    header_to      TEXT,
    header_cc      TEXT,
    subject        TEXT,
    sent_at        INTEGER,           -- the Date field, as microseconds like every other time here
    headers        TEXT    NOT NULL,  -- JSON: [[name, value], ...]
    size           INTEGER NOT NULL,
    recorded_at    INTEGER NOT NULL
) STRICT;

CREATE INDEX messages_by_message_id ON messages (lock_digest);

-- The message as received; a row only where the operator asked for it.
CREATE TABLE message_sources (
    message_id INTEGER PRIMARY KEY REFERENCES messages (id),
    source     BLOB    NOT NULL
) STRICT;

-- Where each copy is, or that it is still owed.
CREATE TABLE copies (
    copy_key     BLOB    PRIMARY KEY NOT NULL CHECK (length(copy_key) = 32),
    message      INTEGER NOT NULL REFERENCES messages (id),
    role         TEXT    NOT NULL CHECK (role IN ('recipient', 'sender')),
    imap_user    TEXT    NOT NULL,
    mailbox      TEXT    NOT NULL,
    recipient    TEXT    NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('delivered', 'owed')),
    uid_validity INTEGER,
    uid          INTEGER,
    reason       TEXT,
    delivered_at INTEGER,
    updated_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX copies_by_message ON copies (message);
CREATE INDEX copies_owed ON copies (updated_at) WHERE state = 'owed';
