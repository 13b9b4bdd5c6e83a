-- Push notifications: who wants to be told what, what there is to tell, and what came of telling it.
--
-- A delivery writes one thin row into outbox for each copy that it changes, in the transaction that records the copy, and only
-- where anybody is subscribed: it inserts here and reads whether there is a row in subscriptions, nothing else. `maildropd`'s role
-- notify does the rest, by an account of its own (grants-notify.sql).
--
-- None of these tables has a foreign key: a key would lock a row of subscriptions with each event, and what is left of a subscription
-- that is gone is told to nobody, and pruned.

CREATE TABLE subscriptions (
    id                uuid        PRIMARY KEY,
    owner             text        NOT NULL CHECK (octet_length(owner) <= 64),
    callback_url      text        NOT NULL,
    callback_digest   bytea       NOT NULL,
    resource          text        NOT NULL CHECK (resource IN ('all', 'domain', 'address', 'mailbox', 'message')),
    -- An index entry has an end (some 2,700 bytes).
    resource_id       text        NOT NULL DEFAULT '' CHECK (char_length(resource_id) <= 511),
    types             text[]      NOT NULL DEFAULT '{}',
    detail            text        NOT NULL DEFAULT 'thin' CHECK (detail IN ('thin', 'full')),
    in_order          boolean     NOT NULL DEFAULT false,
    max_in_flight     smallint    NOT NULL DEFAULT 4 CHECK (max_in_flight BETWEEN 1 AND 64),
    description       text        NOT NULL DEFAULT '',
    secret_generation integer     NOT NULL DEFAULT 1,
    secret_rotated_at timestamptz,
    state             text        NOT NULL DEFAULT 'unverified'
                                  CHECK (state IN ('unverified', 'active', 'paused', 'disabled')),
    state_reason      text,
    expires_at        timestamptz,
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    CHECK ((resource = 'all') = (resource_id = '')),
    UNIQUE (owner, resource, resource_id, callback_digest)
);
CREATE INDEX subscriptions_resource ON subscriptions (resource, resource_id);
CREATE INDEX subscriptions_owner ON subscriptions (owner, id);
COMMENT ON TABLE subscriptions IS 'Who is told of what, and where; changed by people only, so that deliveries read it undisturbed';
COMMENT ON COLUMN subscriptions.types IS 'The events'' types that are wanted; none: all';
COMMENT ON COLUMN subscriptions.secret_generation IS 'The signing secret is derived from a key file, the id and this; it is not stored';

-- The part that changes all the time, a row for each subscription. It is updated in place, once for each batch of requests: half of
-- each page is left for the next versions of its rows.
CREATE TABLE subscription_queues (
    subscription    uuid        PRIMARY KEY,
    due_at          timestamptz,
    leased_by       uuid,
    leased_until    timestamptz,
    failures        integer     NOT NULL DEFAULT 0,
    failing_since   timestamptz,
    open_until      timestamptz,
    last_success_at timestamptz,
    last_failure_at timestamptz,
    last_failure    text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX subscription_queues_due ON subscription_queues (due_at) WHERE due_at IS NOT NULL;
COMMENT ON TABLE subscription_queues IS 'When a subscription is served next, by whom, and whether its receiver answers';

-- What deliveries have written, and nobody has published yet. One index: each costs every delivery.
CREATE TABLE outbox (
    position   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event      uuid        NOT NULL,
    type       text        NOT NULL,
    copy_key   bytea       NOT NULL,
    identity   bytea       NOT NULL,
    message_id text        NOT NULL,
    role       text        NOT NULL,
    recipient  text        NOT NULL,
    imap_user  text        NOT NULL,
    mailbox    text        NOT NULL,
    manner     text,
    attempt    uuid,
    queue_id   text,
    host       text        NOT NULL,
    diff       jsonb       NOT NULL,
    created_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0);
COMMENT ON TABLE outbox IS 'Events as they were recorded with their copies; each is taken out when it is published';
COMMENT ON COLUMN outbox.diff IS 'What changed of the copy: {"field": {"---": old, "+++": new}, ...}';

-- The same once they are published, in the order of their commits: position has no gap behind which one could still appear.
CREATE TABLE events (
    position     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event        uuid        NOT NULL UNIQUE,
    type         text        NOT NULL,
    copy_key     bytea       NOT NULL,
    identity     bytea       NOT NULL,
    message_id   text        NOT NULL,
    role         text        NOT NULL,
    recipient    text        NOT NULL,
    imap_user    text        NOT NULL,
    mailbox      text        NOT NULL,
    manner       text,
    attempt      uuid,
    queue_id     text,
    host         text        NOT NULL,
    diff         jsonb       NOT NULL,
    created_at   timestamptz NOT NULL,
    published_at timestamptz NOT NULL
);
CREATE INDEX events_identity ON events (identity);
CREATE INDEX events_created_at ON events USING brin (created_at);
COMMENT ON TABLE events IS 'What happened to copies, in the order in which it was committed';

-- What is still to be told to whom. A row is deleted once its receiver has answered.
CREATE TABLE notifications (
    subscription uuid        NOT NULL,
    event        bigint      NOT NULL,
    due_at       timestamptz,
    tries        smallint    NOT NULL DEFAULT 0,
    last_status  smallint,
    last_error   text,
    failed_at    timestamptz,
    PRIMARY KEY (subscription, event)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX notifications_due ON notifications (subscription, due_at, event) WHERE due_at IS NOT NULL;
CREATE INDEX notifications_failed ON notifications (failed_at) WHERE failed_at IS NOT NULL;
COMMENT ON TABLE notifications IS 'Events that a subscription has not been told of yet; due_at NULL: given up';

CREATE TABLE notification_attempts (
    subscription uuid        NOT NULL,
    event        bigint      NOT NULL,
    started_at   timestamptz NOT NULL,
    host         text        NOT NULL,
    by_hand      boolean     NOT NULL DEFAULT false,
    milliseconds integer     NOT NULL,
    status       smallint,
    outcome      text        NOT NULL,
    response     text,
    next_at      timestamptz,
    PRIMARY KEY (event, subscription, started_at)
);
CREATE INDEX notification_attempts_started_at ON notification_attempts USING brin (started_at);
COMMENT ON TABLE notification_attempts IS 'Every try at telling an event to a subscription, and what the receiver answered';
