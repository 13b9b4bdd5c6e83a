-- Who may look at the page: links that log somebody in, each good once, and the logins that came of them. Of either the table has a
-- digest only: whoever reads it, or a backup of it, cannot log in with that.

CREATE TABLE web_logins (
    digest     BLOB    PRIMARY KEY NOT NULL CHECK (length(digest) = 32),
    name       TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 64),
    role       TEXT    NOT NULL CHECK (role IN ('viewer', 'reader', 'operator', 'admin')),
    made_at    INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE web_sessions (
    digest   BLOB    PRIMARY KEY NOT NULL CHECK (length(digest) = 32),
    name     TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 64),
    role     TEXT    NOT NULL CHECK (role IN ('viewer', 'reader', 'operator', 'admin')),
    began_at INTEGER NOT NULL,
    seen_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
