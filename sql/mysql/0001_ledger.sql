-- The ledger, for MySQL 8.0.16 and later and MariaDB 10.6 and later.
--
-- DDL commits by itself here, so a migration that stopped half way is simply run again: every statement may be.
-- A statement ends where a line ends with a semicolon (see src/database/mysql/sql.rs).
--
-- Times are DATETIME(6) in UTC, written by UTC_TIMESTAMP(6): a TIMESTAMP ends in 2038 on MySQL, is converted by the
-- session's time_zone on its way in and out, and on older MariaDB changes with every UPDATE unless told otherwise.
-- Texts compare by their bytes (utf8mb4_bin): names of mailboxes are case-sensitive in IMAP, and the users and addresses
-- that lead to them are matched exactly. Texts that come from a message or from Postfix are TEXT or larger: a length that
-- the ledger cannot hold would defer that message until Postfix gives it up.

CREATE TABLE IF NOT EXISTS addresses (
    address     VARCHAR(320) NOT NULL COMMENT 'in lower case',
    imap_user   VARCHAR(255) NOT NULL,
    inbox       VARCHAR(255) NOT NULL DEFAULT 'INBOX',
    sent        VARCHAR(255) NOT NULL DEFAULT 'Sent',
    PRIMARY KEY (address),
    -- An address in capitals would never be found, and its mail be refused: no such user.
    CONSTRAINT addresses_are_lower_case CHECK (address = LOWER(address))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'which mailboxes an address has';

-- The journal: a row for each copy that a process set out to deliver, committed before it takes the lock.
CREATE TABLE IF NOT EXISTS attempts (
    attempt      BINARY(16) NOT NULL COMMENT 'UUID version 7',
    copy_key     BINARY(32) NOT NULL,
    role         ENUM('recipient', 'sender') NOT NULL,
    imap_user    TEXT NOT NULL,
    mailbox      TEXT NOT NULL,
    identity     BINARY(32) NOT NULL,
    lock_digest  BINARY(32) NOT NULL,
    message_id   MEDIUMTEXT NOT NULL,
    recipient    TEXT NOT NULL,
    queue_id     TEXT NULL,
    host         TEXT NOT NULL,
    pid          INT UNSIGNED NOT NULL,
    session      BIGINT UNSIGNED NULL COMMENT 'CONNECTION_ID()',
    uid_validity BIGINT NULL COMMENT 'where the mailbox stood before',
    uid_next     BIGINT NULL COMMENT 'where the mailbox stood before',
    started_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    ended_at     DATETIME(6) NULL COMMENT 'UTC; NULL: runs, or died',
    outcome      TEXT NULL,
    PRIMARY KEY (attempt, copy_key),
    -- The one way in by copy: open attempts, and the age of the first. No other index: each costs every delivery.
    KEY attempts_by_copy (copy_key, ended_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'the journal: what was tried';

CREATE TABLE IF NOT EXISTS messages (
    id             BIGINT NOT NULL AUTO_INCREMENT,
    identity       BINARY(32) NOT NULL COMMENT 'digest of Message-ID and content',
    lock_digest    BINARY(32) NOT NULL COMMENT 'digest of namespace and Message-ID',
    message_id     MEDIUMTEXT NOT NULL,
    content_digest BINARY(32) NOT NULL,
    sender         TEXT NOT NULL COMMENT 'envelope sender; empty: the null sender',
    header_from    MEDIUMTEXT NULL,
    header_to      MEDIUMTEXT NULL,
    header_cc      MEDIUMTEXT NULL,
    subject        MEDIUMTEXT NULL,
    sent_at        DATETIME NULL COMMENT 'the Date field, UTC',
    headers        JSON NOT NULL COMMENT 'all fields in order, [[name, value], ...]',
    size           BIGINT NOT NULL COMMENT 'bytes',
    recorded_at    DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (id),
    UNIQUE KEY messages_by_identity (identity),
    KEY messages_by_message_id (lock_digest)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'what is known of each message';

-- Kept apart, so that walking messages does not walk their sources; a site may leave it empty (record.raw).
CREATE TABLE IF NOT EXISTS message_sources (
    message_id BIGINT NOT NULL,
    source     LONGBLOB NOT NULL COMMENT 'the message as it was received',
    PRIMARY KEY (message_id),
    CONSTRAINT message_sources_message FOREIGN KEY (message_id) REFERENCES messages (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'messages as received, where they are kept';

CREATE TABLE IF NOT EXISTS copies (
    copy_key     BINARY(32) NOT NULL,
    message      BIGINT NOT NULL,
    role         ENUM('recipient', 'sender') NOT NULL,
    imap_user    TEXT NOT NULL,
    mailbox      TEXT NOT NULL,
    recipient    TEXT NOT NULL COMMENT 'of the delivery that brought it',
    state        ENUM('delivered', 'owed') NOT NULL,
    uid_validity BIGINT NULL,
    uid          BIGINT NULL,
    reason       TEXT NULL COMMENT 'why it is still owed',
    delivered_at DATETIME(6) NULL COMMENT 'UTC; when it was first recorded as delivered',
    updated_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (copy_key),
    KEY copies_by_message (message),
    -- Finds the few that are owed among the many that are not. Delivered rows go in at its right end, one after the
    -- other, which is the cheapest place an index has.
    KEY copies_by_state (state, updated_at),
    CONSTRAINT copies_message FOREIGN KEY (message) REFERENCES messages (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'where each copy is, or that it is still owed';
