-- The tables of the ledger, for MySQL 8.0.16 and later and MariaDB 10.6 and later. `maildrop_command migrate` runs this file.
--
-- Until release 1.0 this file is edited in place, and a database is recreated (docs/upgrade.md). From 1.0 on it stays as it
-- is: a change is another numbered file, which only adds, so that the programs of the release before go on meanwhile.
--
-- Each DDL statement commits by itself here. A file that stopped half way is run again from its start, so every statement may
-- be run twice. A statement ends where a line ends with a semicolon (src/database/mysql/sql.rs).
--
-- Times are DATETIME(6) in UTC, written by UTC_TIMESTAMP(6): a TIMESTAMP ends in 2038 on MySQL, is converted by the session's
-- time_zone, and on older MariaDB changes with every UPDATE. Texts compare by their bytes (utf8mb4_bin): names of mailboxes
-- are case-sensitive in IMAP. Texts of a message or of Postfix are TEXT or larger: a length that the ledger cannot hold would
-- defer that message until Postfix bounces it.
--
-- Each index costs every delivery, so there is none that no statement reads.

-- Addresses ---------------------------------------------------------------------------------------------------------

-- Which mailboxes an address has. The platform fills it; a delivery only reads it, by the primary key.
CREATE TABLE IF NOT EXISTS addresses (
    address     VARCHAR(320) NOT NULL COMMENT 'in lower case',
    imap_user   VARCHAR(255) NOT NULL COMMENT 'the user that the mailbox store knows',
    inbox       VARCHAR(255) NOT NULL DEFAULT 'INBOX' COMMENT 'where mail for the address goes',
    sent        VARCHAR(255) NOT NULL DEFAULT 'Sent' COMMENT 'where mail of the address is kept',
    destination TEXT NULL COMMENT 'for later versions; this one defers mail for a row that has it',
    PRIMARY KEY (address),
    -- A delivery asks in lower case. An address stored otherwise would never be found, and its mail would be refused.
    CONSTRAINT addresses_are_lower_case CHECK (address = LOWER(address))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'which mailboxes an address has';

-- A delivery refuses nobody before this row is written, in the statement that finds the address missing, and its COMMIT is
-- confirmed: a former primary, or a server that is cut off from its replicas, has an older table of addresses.
CREATE TABLE IF NOT EXISTS unknown_recipients (
    host    VARCHAR(255) NOT NULL,
    count   BIGINT UNSIGNED NOT NULL COMMENT 'how many recipients',
    in_hour BIGINT UNSIGNED NOT NULL COMMENT 'how many of them in the hour of last_at: it limits the rows of `failures`',
    last_at DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (host)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'how many recipients each host has refused as unknown, and when it last did';

-- Logins to the mailbox store that were proven: asked for a user who does not exist, the store has refused it, so it respects
-- the user whom the service account names. A delivery reads its row together with `addresses`, and repeats an old proof.
CREATE TABLE IF NOT EXISTS login_checks (
    digest      BINARY(32) NOT NULL PRIMARY KEY COMMENT 'SHA-256 of login',
    login       TEXT NOT NULL COMMENT 'server, port, TLS, account: for people',
    verified_at DATETIME(6) NOT NULL COMMENT 'UTC',
    host        VARCHAR(255) NOT NULL COMMENT 'which host has proven it'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'logins to the mailbox store, and when which host last proved that they lead to the right user';

-- The ledger --------------------------------------------------------------------------------------------------------

-- The journal. A row is written, and committed, before the lock is taken and before anything is appended.
CREATE TABLE IF NOT EXISTS attempts (
    attempt      BINARY(16) NOT NULL COMMENT 'UUID version 7, by the clock of the host; one for all copies of one delivery',
    copy_key     BINARY(32) NOT NULL COMMENT 'copies.copy_key',
    role         ENUM('recipient', 'sender') NOT NULL COMMENT 'sender: a copy for the Sent mailbox',
    imap_user    TEXT NOT NULL,
    mailbox      TEXT NOT NULL,
    identity     BINARY(32) NOT NULL COMMENT 'messages.identity; an attempt comes before its message',
    lock_digest  BINARY(32) NOT NULL COMMENT 'the name of the lock',
    message_id   MEDIUMTEXT NOT NULL COMMENT 'as it came: also of a message that is never recorded',
    recipient    TEXT NOT NULL COMMENT 'of the delivery: for a Sent copy, the recipient whose delivery makes it',
    queue_id     TEXT NULL COMMENT 'of Postfix',
    sender       TEXT NULL COMMENT 'envelope sender; empty: the null sender; NULL: not known',
    host         TEXT NOT NULL,
    pid          INT UNSIGNED NOT NULL,
    session      BIGINT UNSIGNED NULL COMMENT 'CONNECTION_ID()',
    uid_validity BIGINT NULL COMMENT 'of the mailbox before the append, from where a later attempt searches',
    uid_next     BIGINT NULL COMMENT 'the same; NULL: there was no mailbox',
    started_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    ended_at     DATETIME(6) NULL COMMENT 'UTC; NULL: it runs, or the process died',
    outcome      TEXT NULL COMMENT 'how it ended: src/ledger/outcome.rs',
    stages       JSON NULL COMMENT 'milliseconds of each stage, up to the record; NULL while open',
    -- The rows are in the order of this key, so an insert goes to the end. The record ends an attempt by it.
    PRIMARY KEY (attempt, copy_key),
    -- The look: open attempts at a copy, and the age of the first.
    KEY attempts_by_copy (copy_key, ended_at),
    -- `trace` by Message-ID, also of a message that was never recorded; the search of the web UI; `lock list`; `prune` of
    -- messages.
    KEY attempts_by_lock (lock_digest),
    -- `trace` by queue id or address, `stats`, `audit`, `prune`, the lists of the web UI. By the clock of the database, and not by the
    -- UUID, which the clock of a host has made. Inserts go to its end.
    KEY attempts_by_time (started_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'the journal: what was tried';

-- What is known of a message. The first delivery of any of its copies writes it.
CREATE TABLE IF NOT EXISTS messages (
    id             BIGINT NOT NULL AUTO_INCREMENT,
    -- Days since 1970 of its own Date, big-endian, 0 if unknown; then 28 bytes of SHA-256 over Message-ID and content digest.
    -- Messages of one day lie together, and inserts go to the end of the index.
    identity       BINARY(32) NOT NULL COMMENT 'day of its Date, digest of Message-ID and content',
    lock_digest    BINARY(32) NOT NULL COMMENT 'SHA-256 of lock.namespace and Message-ID',
    message_id     MEDIUMTEXT NOT NULL,
    content_digest BINARY(32) NOT NULL COMMENT 'SHA-256 of what the author wrote',
    sender         TEXT NOT NULL COMMENT 'envelope sender; empty: the null sender',
    header_from    MEDIUMTEXT NULL COMMENT 'decoded, as the first copy had it; so are the next three',
    header_to      MEDIUMTEXT NULL,
    header_cc      MEDIUMTEXT NULL,
    subject        MEDIUMTEXT NULL,
    sent_at        DATETIME NULL COMMENT 'the Date field, UTC',
    headers        JSON NOT NULL COMMENT 'all fields in order, [[name, value], ...]',
    size           BIGINT NOT NULL COMMENT 'bytes',
    recorded_at    DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (id),
    -- The record finds it by this.
    UNIQUE KEY messages_by_identity (identity),
    -- `trace` by Message-ID and `lock list`: once the attempts at a message are pruned, nothing else leads to it.
    KEY messages_by_message_id (lock_digest),
    -- `stats`, `audit`, `prune`, the search of the web UI.
    KEY messages_by_time (recorded_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'what is known of each message';

-- A table of its own, so that a scan of messages does not read it.
CREATE TABLE IF NOT EXISTS message_sources (
    message_id BIGINT NOT NULL,
    source     LONGBLOB NOT NULL COMMENT 'the message as it was received',
    PRIMARY KEY (message_id),
    CONSTRAINT message_sources_message FOREIGN KEY (message_id) REFERENCES messages (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'messages as received; only with record.keep_source';

-- The look reads it by its key.
CREATE TABLE IF NOT EXISTS copies (
    -- The first four bytes of the identity, then 28 bytes of SHA-256 over identity, role, user and mailbox.
    copy_key     BINARY(32) NOT NULL,
    message      BIGINT NOT NULL,
    role         ENUM('recipient', 'sender') NOT NULL,
    imap_user    TEXT NOT NULL,
    mailbox      TEXT NOT NULL,
    recipient    TEXT NOT NULL COMMENT 'of the delivery that made it',
    state        ENUM('delivered', 'owed') NOT NULL,
    uid_validity BIGINT NULL COMMENT 'where it was appended; NULL: the server did not say (no UIDPLUS)',
    uid          BIGINT NULL,
    reason       TEXT NULL COMMENT 'why it is owed',
    delivered_at DATETIME(6) NULL COMMENT 'UTC; when it was first recorded as delivered',
    updated_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (copy_key),
    -- `trace`, `audit`, `prune`; the foreign key.
    KEY copies_by_message (message),
    -- `stats`, `audit`, `check`, `replay --owed`, the web UI: the few that are owed. Delivered rows go to its end, the
    -- cheapest place.
    KEY copies_by_state (state, updated_at),
    CONSTRAINT copies_message FOREIGN KEY (message) REFERENCES messages (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'where each copy is, or that it is owed';

-- Failures ----------------------------------------------------------------------------------------------------------

-- Deliveries that failed before their journal: the mailbox store was down, it refused the login, the recipient is unknown. One
-- row for each message and recipient, however often it is tried. Journal, look, audit and replay never read it, and the record
-- never touches it. A row is written within a second, the shortest lock wait of InnoDB, or not at all.
CREATE TABLE IF NOT EXISTS failures (
    identity    BINARY(32) NOT NULL COMMENT 'messages.identity',
    recipient   VARCHAR(320) NOT NULL COMMENT 'of the envelope',
    lock_digest BINARY(32) NOT NULL COMMENT 'the name of the lock',
    sender      TEXT NULL COMMENT 'envelope sender; empty: the null sender; NULL: not known',
    author      MEDIUMTEXT NULL COMMENT 'From, decoded',
    subject     MEDIUMTEXT NULL,
    message_id  MEDIUMTEXT NOT NULL,
    queue_id    TEXT NULL COMMENT 'of Postfix, of the last try; so are host, cause and mailbox',
    host        TEXT NOT NULL,
    cause       TEXT NOT NULL COMMENT 'src/ledger/outcome.rs',
    imap_user   TEXT NULL COMMENT 'of the mailbox of the recipient, if it is known',
    mailbox     TEXT NULL,
    count       BIGINT NOT NULL COMMENT 'how many tries',
    first_at    DATETIME(6) NOT NULL COMMENT 'UTC',
    last_at     DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (identity, recipient),
    -- `trace` by Message-ID, the search of the web UI.
    KEY failures_by_lock (lock_digest),
    -- `trace` by queue id or address, `stats`, `prune`, the list of the web UI. Inserts go to its end.
    KEY failures_by_time (first_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'deliveries that failed before their journal; a row goes after seven days';

-- Which messages have an address: so that a search finds it, its local part, its domain, and the beginning of each. The timer
-- fills it (src/ledger/message_addresses.rs), and no delivery does. It has no foreign key: `prune` deletes the rows of a message
-- first.
CREATE TABLE IF NOT EXISTS message_addresses (
    message BIGINT NOT NULL COMMENT 'messages.id',
    address VARCHAR(320) NOT NULL COMMENT 'folded',
    domain  VARCHAR(320) NOT NULL,
    role    ENUM('recipient', 'sender', 'from', 'to', 'cc') NOT NULL COMMENT 'recipient and sender: of the envelope',
    PRIMARY KEY (message, address, role),
    -- `trace`, the web UI and the API: an address, a local part, and what addresses begin with.
    KEY message_addresses_by_address (address, message),
    -- The same for domains.
    KEY message_addresses_by_domain (domain, message)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'which messages have an address';

CREATE TABLE IF NOT EXISTS message_addresses_read (
    id         TINYINT UNSIGNED NOT NULL PRIMARY KEY COMMENT 'always 1',
    started_at DATETIME(6) NOT NULL COMMENT 'UTC; attempts that began before are in message_addresses'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'how far the timer has read the attempts for message_addresses';

-- Epochs ------------------------------------------------------------------------------------------------------------

-- As long as one epoch lasts, the database remembers what it committed (src/ledger/epoch.rs). A delivery compares the last row
-- with the present epoch of the server; after a change it looks in the mailbox for what came before.
CREATE TABLE IF NOT EXISTS epochs (
    number BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    epoch  VARCHAR(255) NOT NULL,
    since  DATETIME(6) COMMENT 'UTC: when it was first seen; NULL: the first'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'when the server became another one';

-- The first epoch has no beginning: until now nothing was forgotten. MariaDB has no server_uuid, hence its host name and
-- server_id.
SET @maildrop_dml = CONCAT('INSERT INTO epochs (epoch) SELECT ',
    IF(VERSION() LIKE '%MariaDB%', 'CONCAT(@@hostname, ''/'', @@server_id)', '@@server_uuid'),
    ' FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM epochs)');
PREPARE maildrop_dml FROM @maildrop_dml;
EXECUTE maildrop_dml;
DEALLOCATE PREPARE maildrop_dml;

-- Notifications -----------------------------------------------------------------------------------------------------
--
-- A delivery inserts one row into outbox for each copy that it changes, in the transaction that records the copy, and only if
-- there is a row in subscriptions. The notifier does the rest, with an account of its own (grants-notifier.sql).
--
-- None of these tables has a foreign key: it would lock a row of subscriptions with each event. What is left of a deleted
-- subscription is sent to nobody, and pruned.

CREATE TABLE IF NOT EXISTS subscriptions (
    id                BINARY(16) NOT NULL COMMENT 'UUID version 7',
    owner             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
        COMMENT '''token:'' and the name of an API token, or what the operator has written',
    callback_url      TEXT NOT NULL,
    callback_digest   BINARY(32) NOT NULL,
    -- What is unique is too long for an index entry.
    target_digest     BINARY(32) NOT NULL COMMENT 'of owner, resource, resource_id and callback_url: each is there once',
    resource          ENUM('all', 'domain', 'address', 'mailbox', 'message') NOT NULL,
    resource_id       VARCHAR(511) NOT NULL DEFAULT '',
    types             JSON NOT NULL COMMENT 'the types of events that are wanted; []: all',
    detail            ENUM('thin', 'full') NOT NULL DEFAULT 'thin',
    in_order          BOOLEAN NOT NULL DEFAULT FALSE,
    max_in_flight     SMALLINT UNSIGNED NOT NULL DEFAULT 4,
    description       TEXT NOT NULL,
    secret_generation INT UNSIGNED NOT NULL DEFAULT 1 COMMENT 'the secret is derived from a key file, the id and this',
    secret_rotated_at DATETIME(6) NULL COMMENT 'UTC; the secret before is valid for a while',
    state             ENUM('unverified', 'active', 'paused', 'disabled') NOT NULL DEFAULT 'unverified',
    state_reason      TEXT NULL,
    verified_at       DATETIME(6) NULL COMMENT 'UTC; when the callback answered the challenge; NULL: it has not yet',
    expires_at        DATETIME(6) NULL COMMENT 'UTC',
    created_at        DATETIME(6) NOT NULL COMMENT 'UTC',
    updated_at        DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (id),
    -- The notifier: which subscriptions want an event, by five joins of one resource each.
    KEY subscriptions_by_resource (resource, resource_id(191)),
    UNIQUE KEY subscriptions_once (target_digest),
    -- The API: the pages of the list of an owner.
    KEY subscriptions_by_owner (owner, id),
    CONSTRAINT subscriptions_of_all CHECK ((resource = 'all') = (resource_id = '')),
    CONSTRAINT subscriptions_in_flight CHECK (max_in_flight BETWEEN 1 AND 64)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'which events are sent where; changed by people only';

-- The part of a subscription that changes with each batch of requests.
CREATE TABLE IF NOT EXISTS subscription_queues (
    subscription    BINARY(16) NOT NULL,
    due_at          DATETIME(6) NULL COMMENT 'UTC; NULL: nothing is due',
    leased_by       BINARY(16) NULL COMMENT 'the notifier that serves it now',
    leased_until    DATETIME(6) NULL COMMENT 'UTC',
    failures        INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'since the last success',
    failing_since   DATETIME(6) NULL COMMENT 'UTC',
    paused_until    DATETIME(6) NULL COMMENT 'UTC; the circuit breaker: no request before this',
    last_success_at DATETIME(6) NULL COMMENT 'UTC',
    last_failure_at DATETIME(6) NULL COMMENT 'UTC',
    last_failure    TEXT NULL,
    -- A notifier that crashed may have crashed because of what it had leased: the next one leases half as many.
    lease_limit     INT UNSIGNED NULL
        COMMENT 'how many its notifier has leased at most, with this one; 0: this one alone, once more; NULL: it was given back',
    PRIMARY KEY (subscription),
    -- The notifier: what is due next.
    KEY subscription_queues_by_due (due_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'when a subscription is served next, by which notifier, and whether its receiver answers';

-- Events that deliveries have written, and that no notifier has published yet. One index: each costs every delivery.
CREATE TABLE IF NOT EXISTS outbox (
    position   BIGINT NOT NULL AUTO_INCREMENT,
    event      BINARY(16) NOT NULL COMMENT 'UUID version 7',
    type       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    copy_key   BINARY(32) NOT NULL,
    identity   BINARY(32) NOT NULL,
    message_id MEDIUMTEXT NOT NULL,
    role       ENUM('recipient', 'sender') NOT NULL,
    recipient  TEXT NOT NULL,
    imap_user  TEXT NOT NULL,
    mailbox    TEXT NOT NULL,
    manner     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'appended, adopted, ...',
    attempt    BINARY(16) NULL,
    queue_id   TEXT NULL,
    subscription BINARY(16) NULL COMMENT 'of a test: whom it is sent to',
    host       TEXT NOT NULL,
    diff       JSON NOT NULL COMMENT 'what changed of the copy: {"field": {"---": old, "+++": new}, ...}',
    created_at DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (position)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'events as they were recorded with their copies; each is deleted when it is published';

-- The same events once they are published, in the order of their commits: behind a position no lower one can still appear.
CREATE TABLE IF NOT EXISTS events (
    position     BIGINT NOT NULL AUTO_INCREMENT,
    event        BINARY(16) NOT NULL,
    type         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    copy_key     BINARY(32) NOT NULL,
    identity     BINARY(32) NOT NULL,
    message_id   MEDIUMTEXT NOT NULL,
    role         ENUM('recipient', 'sender') NOT NULL,
    recipient    TEXT NOT NULL,
    imap_user    TEXT NOT NULL,
    mailbox      TEXT NOT NULL,
    manner       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL,
    attempt      BINARY(16) NULL,
    queue_id     TEXT NULL,
    subscription BINARY(16) NULL,
    host         TEXT NOT NULL,
    diff         JSON NOT NULL,
    created_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    published_at DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (position),
    -- The API asks by it; the notifier publishes each once.
    UNIQUE KEY events_by_event (event),
    -- The web UI and the API: the events of a message.
    KEY events_by_identity (identity),
    -- `prune`, and notifications of a span of time that are repeated.
    KEY events_by_time (created_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'what happened to copies, in the order in which it was committed';

-- Events that are still to be sent to a subscription. A row is deleted once the receiver has accepted it.
CREATE TABLE IF NOT EXISTS notifications (
    subscription BINARY(16) NOT NULL,
    event        BIGINT NOT NULL COMMENT 'events.position',
    due_at       DATETIME(6) NULL COMMENT 'UTC; NULL: given up',
    tries        SMALLINT UNSIGNED NOT NULL DEFAULT 0,
    last_status  SMALLINT UNSIGNED NULL COMMENT 'the HTTP status of the last try',
    last_error   TEXT NULL,
    given_up_at  DATETIME(6) NULL COMMENT 'UTC; when it was given up',
    PRIMARY KEY (subscription, event),
    -- The notifier: the next ones of a subscription.
    KEY notifications_by_due (subscription, due_at, event),
    -- `check`, `stats` and the web UI: those that were given up, and since when.
    KEY notifications_given_up (given_up_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'events that a subscription has not received yet';

-- Found by the event, first in the key. `prune` deletes them with their events.
CREATE TABLE IF NOT EXISTS notification_attempts (
    subscription BINARY(16) NOT NULL,
    event        BIGINT NOT NULL COMMENT 'events.position',
    started_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    host         TEXT NOT NULL,
    milliseconds INT UNSIGNED NOT NULL,
    status       SMALLINT UNSIGNED NULL COMMENT 'of HTTP; NULL: no answer',
    outcome      TEXT NOT NULL,
    response     TEXT NULL COMMENT 'how the answer of the receiver begins',
    next_at      DATETIME(6) NULL COMMENT 'UTC; when it is tried again',
    PRIMARY KEY (event, subscription, started_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'every try at sending an event to a subscription, and what the receiver answered';

-- Web UI and API ----------------------------------------------------------------------------------------------------
--
-- Of links, sessions and tokens only digests are stored: who reads these tables, or a backup of them, cannot log in with that.
-- All three are 256 random bits, which need no slow hash.

CREATE TABLE IF NOT EXISTS web_logins (
    digest     BINARY(32) NOT NULL,
    name       VARCHAR(64) NOT NULL,
    role       ENUM('viewer', 'reader', 'operator', 'admin') NOT NULL,
    created_at DATETIME(6) NOT NULL COMMENT 'UTC',
    expires_at DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (digest)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'links that log in to the web UI, each valid once; a row is deleted as its link is used';

CREATE TABLE IF NOT EXISTS web_sessions (
    digest       BINARY(32) NOT NULL COMMENT 'of the cookie in the browser',
    name         VARCHAR(64) NOT NULL,
    role         ENUM('viewer', 'reader', 'operator', 'admin') NOT NULL,
    created_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    last_seen_at DATETIME(6) NOT NULL COMMENT 'UTC; the last request, to the minute',
    PRIMARY KEY (digest)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'who is logged in to the web UI';

CREATE TABLE IF NOT EXISTS api_tokens (
    digest       BINARY(32) NOT NULL COMMENT 'SHA-256',
    id           BINARY(16) NOT NULL COMMENT 'UUID version 7',
    name         VARCHAR(48) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
        COMMENT 'several tokens of one name share their subscriptions',
    scopes       TEXT NOT NULL COMMENT 'what it may do: words, with a space between',
    bounds       TEXT NOT NULL COMMENT 'JSON: the domains, addresses and mailboxes that it is for; none: all',
    rate         INT UNSIGNED NOT NULL COMMENT 'requests a second',
    created_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    expires_at   DATETIME(6) NULL COMMENT 'UTC',
    revoked_at   DATETIME(6) NULL COMMENT 'UTC',
    last_used_at DATETIME(6) NULL COMMENT 'UTC, to the hour',
    -- Each request.
    PRIMARY KEY (digest),
    -- `token revoke`.
    UNIQUE KEY api_tokens_by_id (id),
    -- `token revoke`, `token list`: whether that name has another token that is valid.
    KEY api_tokens_by_name (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'who may use the API';

-- A row is written before the message is in the queue of its host. The id begins with the time, so the primary key is also the
-- order in which `prune` reads.
CREATE TABLE IF NOT EXISTS submissions (
    id          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY COMMENT 'the queue id of the message',
    owner       VARCHAR(64) NOT NULL COMMENT '"token:" and the name of an API token',
    host        VARCHAR(255) NOT NULL,
    identity    BINARY(32) NOT NULL COMMENT 'messages.identity; a submission comes before its message',
    lock_digest BINARY(32) NOT NULL COMMENT 'the name of the lock',
    recipients  MEDIUMTEXT NOT NULL COMMENT 'JSON: the addresses, in lower case',
    created_at  DATETIME(6) NOT NULL COMMENT 'UTC'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'who submitted a message to the API, and which one it is';

-- A row is written before the act, and no account may change or delete one, except that of `prune`. The primary key is the
-- order of the list.
CREATE TABLE IF NOT EXISTS operations (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    created_at DATETIME(6) NOT NULL COMMENT 'UTC',
    actor      VARCHAR(64) NOT NULL,
    interface  VARCHAR(32) NOT NULL COMMENT 'by the web UI, the command line or the API',
    role       VARCHAR(32) NULL COMMENT 'the role of that person in the web UI',
    host       VARCHAR(255) NOT NULL,
    operation  VARCHAR(64) NOT NULL,
    identity   BINARY(32) NULL COMMENT 'of the message that it was done to; messages.identity, which may be pruned',
    message_id VARCHAR(1024) NULL,
    imap_user  VARCHAR(255) NULL,
    mailbox    VARCHAR(255) NULL,
    target     VARCHAR(1024) NULL COMMENT 'what else it was done to: a recipient, a subscription, a login',
    outcome    VARCHAR(1024) NOT NULL COMMENT 'in one line; empty: it had only begun, and a later row has the outcome'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'who did what manually, and its outcome';
