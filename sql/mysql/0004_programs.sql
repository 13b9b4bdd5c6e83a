-- `lock exec`: which programs hold a lock, or wait for one. The server's lock has only a digest for a name; here is what
-- `lock list` calls it. Whether a program really holds it is asked of the server each time: a row that a vanished machine
-- left behind says nothing. No delivery touches this table.

CREATE TABLE IF NOT EXISTS programs (
    lock_digest BINARY(32) NOT NULL,
    host        VARCHAR(255) NOT NULL,
    pid         INT UNSIGNED NOT NULL,
    name        TEXT NOT NULL,
    session     BIGINT UNSIGNED NULL COMMENT 'CONNECTION_ID()',
    asked_at    DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (lock_digest, host, pid)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'programs that `lock exec` runs, or that wait for their lock';
