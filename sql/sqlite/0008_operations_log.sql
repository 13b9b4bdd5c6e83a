-- Who did what by hand: who looked at what is in a message, who delivered again. It is written before what it tells is done.

CREATE TABLE operations_log (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    who        TEXT    NOT NULL,
    way        TEXT    NOT NULL,
    role       TEXT,
    host       TEXT    NOT NULL,
    operation  TEXT    NOT NULL,
    identity   BLOB    CHECK (length(identity) = 32),
    message_id TEXT,
    imap_user  TEXT,
    mailbox    TEXT,
    object     TEXT,
    outcome    TEXT    NOT NULL
) STRICT;
