-- `lock exec`: which programs hold a lock. The lock's file has only a digest for a name; here is what `lock list` calls
-- it. Whether a program really holds it is asked of the system each time.

CREATE TABLE programs (
    lock_digest BLOB    NOT NULL,
    host        TEXT    NOT NULL,
    pid         INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    session     INTEGER,
    asked_at    INTEGER NOT NULL,
    PRIMARY KEY (lock_digest, host, pid)
) WITHOUT ROWID;
