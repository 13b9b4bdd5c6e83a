-- Push notifications: who wants to be told what, what there is to tell, and what came of telling it.
--
-- A delivery writes one thin row into outbox for each copy that it changes, in the transaction that records the copy, and only
-- where anybody is subscribed: it inserts here and reads whether there is a row in subscriptions, nothing else. `maildropd`'s role
-- notify does the rest, by an account of its own (grants-notify.sql).
--
-- None of these tables has a foreign key: a key would lock a row of subscriptions with each event, and what is left of a subscription
-- that is gone is told to nobody, and pruned.

CREATE TABLE IF NOT EXISTS subscriptions (
    id                BINARY(16) NOT NULL COMMENT 'UUID version 7',
    owner             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
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
    secret_rotated_at DATETIME(6) NULL COMMENT 'UTC',
    state             ENUM('unverified', 'active', 'paused', 'disabled') NOT NULL DEFAULT 'unverified',
    state_reason      TEXT NULL,
    expires_at        DATETIME(6) NULL COMMENT 'UTC',
    created_at        DATETIME(6) NOT NULL COMMENT 'UTC',
    updated_at        DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (id),
    KEY subscriptions_by_resource (resource, resource_id(191)),
    UNIQUE KEY subscriptions_once (target_digest),
    KEY subscriptions_by_owner (owner, id),
    CONSTRAINT subscriptions_of_all CHECK ((resource = 'all') = (resource_id = '')),
    CONSTRAINT subscriptions_in_flight CHECK (max_in_flight BETWEEN 1 AND 64)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'who is told of what, and where; changed by people only';

-- The part that changes all the time, a row for each subscription.
CREATE TABLE IF NOT EXISTS subscription_queues (
    subscription    BINARY(16) NOT NULL,
    due_at          DATETIME(6) NULL COMMENT 'UTC; NULL: nothing is due',
    leased_by       BINARY(16) NULL,
    leased_until    DATETIME(6) NULL COMMENT 'UTC',
    failures        INT UNSIGNED NOT NULL DEFAULT 0,
    failing_since   DATETIME(6) NULL COMMENT 'UTC',
    open_until      DATETIME(6) NULL COMMENT 'UTC',
    last_success_at DATETIME(6) NULL COMMENT 'UTC',
    last_failure_at DATETIME(6) NULL COMMENT 'UTC',
    last_failure    TEXT NULL,
    PRIMARY KEY (subscription),
    KEY subscription_queues_by_due (due_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'when a subscription is served next, by whom, and whether its receiver answers';

-- What deliveries have written, and nobody has published yet. One index: each costs every delivery.
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
    manner     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NULL,
    attempt    BINARY(16) NULL,
    queue_id   TEXT NULL,
    host       TEXT NOT NULL,
    diff       JSON NOT NULL COMMENT '{"field": {"---": old, "+++": new}, ...}',
    created_at DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (position)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'events as they were recorded with their copies; each is taken out when it is published';

-- The same once they are published, in the order of their commits.
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
    host         TEXT NOT NULL,
    diff         JSON NOT NULL,
    created_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    published_at DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (position),
    UNIQUE KEY events_by_event (event),
    KEY events_by_identity (identity),
    KEY events_by_time (created_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'what happened to copies, in the order in which it was committed';

-- What is still to be told to whom. A row is deleted once its receiver has answered.
CREATE TABLE IF NOT EXISTS notifications (
    subscription BINARY(16) NOT NULL,
    event        BIGINT NOT NULL COMMENT 'its position',
    due_at       DATETIME(6) NULL COMMENT 'UTC; NULL: given up',
    tries        SMALLINT UNSIGNED NOT NULL DEFAULT 0,
    last_status  SMALLINT UNSIGNED NULL,
    last_error   TEXT NULL,
    failed_at    DATETIME(6) NULL COMMENT 'UTC',
    PRIMARY KEY (subscription, event),
    KEY notifications_by_due (subscription, due_at, event),
    KEY notifications_by_failure (failed_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'events that a subscription has not been told of yet';

CREATE TABLE IF NOT EXISTS notification_attempts (
    subscription BINARY(16) NOT NULL,
    event        BIGINT NOT NULL,
    started_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    host         TEXT NOT NULL,
    by_hand      BOOLEAN NOT NULL DEFAULT FALSE,
    milliseconds INT UNSIGNED NOT NULL,
    status       SMALLINT UNSIGNED NULL,
    outcome      TEXT NOT NULL,
    response     TEXT NULL,
    next_at      DATETIME(6) NULL COMMENT 'UTC',
    PRIMARY KEY (event, subscription, started_at),
    KEY notification_attempts_by_time (started_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'every try at telling an event to a subscription, and what the receiver answered';
