-- `lock exec`: which programs hold a lock, or wait for one. The server's lock has only a digest for a name; here is what
-- `lock list` calls it. Whether a program really holds it is asked of the server each time: a row that a vanished machine
-- left behind says nothing.
--
-- Written before the lock is asked for and taken out after it is let go, never while it is held: a transaction that has
-- written would hold back VACUUM for as long as the program runs. No delivery touches this table.

CREATE TABLE programs (
    lock_digest bytea       NOT NULL,
    host        text        NOT NULL,
    pid         bigint      NOT NULL,
    name        text        NOT NULL,
    session     bigint,
    asked_at    timestamptz NOT NULL,
    PRIMARY KEY (lock_digest, host, pid)
);
COMMENT ON TABLE programs IS 'Programs that `lock exec` runs, or that wait for their lock';
