-- The tables of the ledger, for PostgreSQL 13 and later. `maildrop_command migrate` runs this file, in one transaction.
--
-- Until release 1.0 this file is edited in place, and a database is recreated (docs/upgrade.md). From 1.0 on it stays as it
-- is: a change is another numbered file, which only adds, so that the programs of the release before go on meanwhile.
--
-- Each index costs every delivery, so there is none that no statement reads. Times are of the database's clock.

-- Addresses ---------------------------------------------------------------------------------------------------------

-- Which mailboxes an address has. The platform fills it; a delivery only reads it, by the primary key.
CREATE TABLE addresses (
    -- A delivery asks in lower case. An address stored otherwise would never be found, and its mail would be refused.
    address   varchar(320) PRIMARY KEY CONSTRAINT addresses_lower_case CHECK (address = lower(address)),
    imap_user varchar(255) NOT NULL,                 -- the user that the mailbox store knows
    inbox     varchar(255) NOT NULL DEFAULT 'INBOX', -- where mail for the address goes
    sent      varchar(255) NOT NULL DEFAULT 'Sent',  -- where mail of the address is kept
    destination text                                 -- for later versions; this one defers mail for a row that has it
);
COMMENT ON TABLE addresses IS 'Which IMAP user an address belongs to, and the mailboxes for what arrives and what is sent';

-- Recipients that a host has refused for good (`routing.unknown_recipient = "reject"`). A delivery refuses nobody before this row is
-- written, in the statement that finds the address missing, and its COMMIT is confirmed: a former primary, or a server that is
-- cut off from its standbys, has an older table of addresses.
--
-- One row per host, updated in place. No index but the key, and a fill factor that leaves room for new row versions (HOT
-- updates).
CREATE TABLE unknown_recipients (
    host    text        PRIMARY KEY,
    count   bigint      NOT NULL, -- how many recipients
    in_hour bigint      NOT NULL, -- how many of them in the hour of last_at: it limits the rows of `failures`
    last_at timestamptz NOT NULL  -- when the last one
) WITH (fillfactor = 10);
COMMENT ON TABLE unknown_recipients IS 'How many recipients each host has refused as unknown, and when it last did';

-- Logins to the mailbox store that were proven: asked for a user who does not exist, the store has refused it, so it respects
-- the user whom the service account names. A delivery reads its row together with `addresses`, and repeats an old proof.
CREATE TABLE login_checks (
    digest      bytea       PRIMARY KEY, -- SHA-256 of login
    login       text        NOT NULL,    -- server, port, TLS, account: for people
    verified_at timestamptz NOT NULL,
    host        text        NOT NULL     -- which host has proven it
);
COMMENT ON TABLE login_checks IS 'Logins to the mailbox store, and when which host last proved that they lead to the right user';

-- The ledger --------------------------------------------------------------------------------------------------------

-- The journal. A row is written, and committed, before the lock is taken and before anything is appended.
CREATE TABLE attempts (
    copy_key     bytea       NOT NULL, -- day, and digest of identity, role, user and mailbox: see copies.copy_key
    attempt      uuid        NOT NULL, -- version 7, by the host's clock; one for all copies of one delivery
    role         text        NOT NULL, -- 'recipient' or 'sender' (a copy for the Sent mailbox)
    imap_user    text        NOT NULL,
    mailbox      text        NOT NULL,
    identity     bytea       NOT NULL, -- messages.identity; no foreign key: an attempt comes before its message
    lock_digest  bytea       NOT NULL,
    message_id   text        NOT NULL, -- as it came: also of a message that is never recorded
    recipient    text        NOT NULL, -- of the delivery: for a Sent copy, the recipient whose delivery makes it
    queue_id     text,                 -- Postfix's
    sender       text,
    host         text        NOT NULL,
    pid          bigint      NOT NULL,
    session      bigint,
    uid_validity bigint,               -- the mailbox's position before the append, from where a later attempt searches;
    uid_next     bigint,               -- NULL: the mailbox did not exist
    started_at   timestamptz NOT NULL,
    ended_at     timestamptz,          -- NULL: it runs, or the process died
    outcome      text,                 -- how it ended: src/ledger/outcome.rs
    stages       jsonb,
    -- The look asks for the attempts at a copy, and the record ends one of them. A copy has as many attempts as Postfix makes
    -- (some 130 in five days), so the ended ones need no index of their own. No index has ended_at, so to end an attempt
    -- touches none: a HOT update, for which the fill factor leaves room.
    PRIMARY KEY (copy_key, attempt)
) WITH (fillfactor = 70);
-- `trace` by Message-ID, also of a message that was never recorded; the web UI's search; `lock list`; `prune` of messages.
CREATE INDEX attempts_lock_digest ON attempts (lock_digest);
-- `trace` by queue id or address, `stats`, `audit`, `prune`, the web UI's lists. Inserts go to its last page: 78 bytes of WAL.
CREATE INDEX attempts_started_at ON attempts (started_at);
COMMENT ON TABLE attempts IS 'One row per copy that a process set out to deliver; open until ended_at is set';
COMMENT ON COLUMN attempts.lock_digest IS 'The lock''s name; its first 8 bytes, big-endian, are the advisory lock''s key';
COMMENT ON COLUMN attempts.session IS 'The server process (pg_stat_activity.pid) that wrote the row';
COMMENT ON COLUMN attempts.sender IS 'The envelope sender; empty for the null sender, NULL where it is not known';
COMMENT ON COLUMN attempts.stages IS 'Milliseconds that each stage of the delivery took, up to its record; NULL while it is open';

-- What is known of a message. The first delivery of any of its copies writes it.
CREATE TABLE messages (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The day of its own Date in four bytes (days since 1970, big-endian; 0: unknown), then 28 bytes of SHA-256 over
    -- Message-ID and content digest. Messages of one day lie together, and inserts go to the end of the index. The record
    -- finds it by this.
    identity       bytea       NOT NULL UNIQUE,
    lock_digest    bytea       NOT NULL, -- SHA-256 of lock.namespace and Message-ID
    message_id     text        NOT NULL,
    content_digest bytea       NOT NULL, -- SHA-256 of what the author wrote
    sender         text        NOT NULL,
    header_from    text,                 -- these fields decoded, as the first copy had them
    header_to      text,
    header_cc      text,
    subject        text,
    sent_at        timestamptz,          -- the Date field
    headers        jsonb       NOT NULL,
    size           bigint      NOT NULL, -- bytes
    recorded_at    timestamptz NOT NULL
);
-- `trace` by Message-ID and `lock list`: once the attempts at a message are pruned, nothing else leads to it.
CREATE INDEX messages_lock_digest ON messages (lock_digest);
-- `stats`, `audit`, `prune`, the web UI's search. Inserts go to its last page.
CREATE INDEX messages_recorded_at ON messages (recorded_at);
COMMENT ON TABLE messages IS 'What is known of a message: (Message-ID, digest of what its author wrote) is its identity';
COMMENT ON COLUMN messages.sender IS 'The envelope sender; empty for the null sender';
COMMENT ON COLUMN messages.headers IS 'All header fields in their order: [["Name", "value"], ...]';

-- The message as received; only with record.keep_source. A table of its own, so that a scan of messages does not read it.
CREATE TABLE message_sources (
    message_id bigint PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
    source     bytea  NOT NULL
);

-- Where each copy is, or that it is owed. The look reads it by its key.
CREATE TABLE copies (
    -- The first four bytes of the message's identity, then 28 bytes of SHA-256 over identity, role, user and mailbox.
    copy_key     bytea       PRIMARY KEY,
    message      bigint      NOT NULL REFERENCES messages (id),
    role         text        NOT NULL, -- 'recipient' or 'sender'
    imap_user    text        NOT NULL,
    mailbox      text        NOT NULL,
    recipient    text        NOT NULL, -- of the delivery that made it
    state        text        NOT NULL, -- 'delivered' or 'owed'
    uid_validity bigint,               -- where it was appended; NULL: the server did not say (no UIDPLUS)
    uid          bigint,
    reason       text,                 -- why it is owed
    delivered_at timestamptz,          -- when it was first recorded as delivered
    updated_at   timestamptz NOT NULL
);
-- `trace`, `audit`, `prune`; the foreign key.
CREATE INDEX copies_message ON copies (message);
-- `stats`, `audit`, `check`, `replay --owed`, the web UI: the few that are owed.
CREATE INDEX copies_owed ON copies (updated_at) WHERE state = 'owed';
COMMENT ON TABLE copies IS 'One row per (message, user, mailbox, role): delivered, and where; or owed, and why';

-- Failures ----------------------------------------------------------------------------------------------------------

-- Deliveries that failed before their journal: the mailbox store was down, it refused the login, the recipient is unknown. One
-- row for each message and recipient, however often it is tried. Journal, look, audit and replay never read it, and the record
-- never touches it. A row is written within 100 ms, or not at all.
--
-- A further try changes no column of an index: a HOT update, for which the fill factor leaves space.
CREATE TABLE failures (
    identity    bytea       NOT NULL, -- messages.identity
    recipient   text        NOT NULL, -- of the envelope
    lock_digest bytea       NOT NULL,
    sender      text,                 -- of the envelope; empty: the null sender
    author      text,                 -- From, decoded
    subject     text,
    message_id  text        NOT NULL,
    queue_id    text,                 -- Postfix's, of the last try; so are host, cause and mailbox
    host        text        NOT NULL,
    cause       text        NOT NULL, -- src/ledger/outcome.rs
    imap_user   text,                 -- of the recipient's mailbox, if it is known
    mailbox     text,
    count       bigint      NOT NULL, -- how many tries
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    PRIMARY KEY (identity, recipient)
) WITH (fillfactor = 70);
-- `trace` by Message-ID, the web UI's search.
CREATE INDEX failures_lock_digest ON failures (lock_digest);
-- `trace` by queue id or address, `stats`, `prune`, the web UI's list. Inserts go to its last page.
CREATE INDEX failures_first_at ON failures (first_at);
COMMENT ON TABLE failures IS 'Deliveries that failed before their journal; a row goes after seven days';
COMMENT ON COLUMN failures.count IS 'How many tries have failed before their journal';

-- Which messages have an address: so that a search finds it, its local part, its domain, and the beginning of each. The timer
-- fills it (src/ledger/message_addresses.rs), and no delivery does. It has no foreign key: `prune` deletes a message's rows first.
CREATE TABLE message_addresses (
    message bigint       NOT NULL, -- messages.id
    -- In the order of bytes, so that a beginning is a range of the index.
    address varchar(320) COLLATE "C" NOT NULL, -- folded
    domain  varchar(320) COLLATE "C" NOT NULL,
    role    text         NOT NULL CHECK (role IN ('recipient', 'sender', 'from', 'to', 'cc')),
    PRIMARY KEY (message, address, role)
);
-- `trace`, the web UI and the API: an address, a local part, and what addresses begin with.
CREATE INDEX message_addresses_address ON message_addresses (address, message);
-- The same for domains.
CREATE INDEX message_addresses_domain ON message_addresses (domain, message);
COMMENT ON TABLE message_addresses IS 'Which messages have an address, of the envelope or of From, To and Cc';

-- One row: attempts that began before this time are in message_addresses.
CREATE TABLE message_addresses_read (
    id         smallint    PRIMARY KEY CHECK (id = 1),
    started_at timestamptz NOT NULL
);
COMMENT ON TABLE message_addresses_read IS 'How far the timer has read the attempts for message_addresses';

-- Epochs ------------------------------------------------------------------------------------------------------------

-- As long as one epoch lasts, the database remembers what it committed (src/ledger/epoch.rs). A delivery compares the last row
-- with the server's present epoch; after a change it looks in the mailbox for what came before.
CREATE TABLE epochs (
    number bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    epoch  text        NOT NULL,
    since  timestamptz
);
COMMENT ON TABLE epochs IS 'When the server, or what it remembers, became another one';
COMMENT ON COLUMN epochs.since IS 'When that was first seen; NULL: the first';

-- The present epoch: the server's system identifier; its timeline, which a promotion increments; and the table's own oid,
-- which a restored dump changes. The timeline is that of the WAL position: pg_control_checkpoint() has that of the last
-- checkpoint, which a promotion does not wait for. NULL where a hosted service lacks one of these functions.
CREATE FUNCTION maildrop_epoch(OUT present text, OUT last text, OUT age float8) LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        present := (SELECT concat_ws('/', system_identifier, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
                                     'epochs'::regclass::oid)
                    FROM pg_control_system());
    EXCEPTION WHEN OTHERS THEN
        present := NULL;
    END;
    SELECT e.epoch, extract(epoch FROM clock_timestamp() - e.since) INTO last, age FROM epochs e ORDER BY e.number DESC LIMIT 1;
END $$;

-- The first epoch has no beginning: until now nothing was forgotten.
INSERT INTO epochs (epoch) SELECT present FROM maildrop_epoch() WHERE present IS NOT NULL;

-- Notifications -----------------------------------------------------------------------------------------------------
--
-- A delivery inserts one row into outbox for each copy that it changes, in the transaction that records the copy, and only if
-- there is a row in subscriptions. The notifier does the rest, with a role of its own (grants-notifier.sql).
--
-- None of these tables has a foreign key: it would lock a row of subscriptions with each event. What is left of a deleted
-- subscription is sent to nobody, and pruned.

CREATE TABLE subscriptions (
    id                uuid        PRIMARY KEY,  -- version 7
    -- 'token:' and the name of an API token, or what the operator has written.
    owner             text        NOT NULL CHECK (octet_length(owner) <= 64),
    callback_url      text        NOT NULL,
    callback_digest   bytea       NOT NULL,     -- of the URL, which is too long for an index entry
    resource          text        NOT NULL CHECK (resource IN ('all', 'domain', 'address', 'mailbox', 'message')),
    -- An index entry has at most some 2,700 bytes.
    resource_id       text        NOT NULL DEFAULT '' CHECK (char_length(resource_id) <= 511),
    types             text[]      NOT NULL DEFAULT '{}',
    detail            text        NOT NULL DEFAULT 'thin' CHECK (detail IN ('thin', 'full')),
    in_order          boolean     NOT NULL DEFAULT false,
    max_in_flight     smallint    NOT NULL DEFAULT 4 CHECK (max_in_flight BETWEEN 1 AND 64),
    description       text        NOT NULL DEFAULT '',
    secret_generation integer     NOT NULL DEFAULT 1,
    secret_rotated_at timestamptz,              -- the secret before is valid for a while
    state             text        NOT NULL DEFAULT 'unverified'
                                  CHECK (state IN ('unverified', 'active', 'paused', 'disabled')),
    state_reason      text,
    verified_at       timestamptz,              -- when the callback answered the challenge; NULL: it has not yet
    expires_at        timestamptz,
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    CHECK ((resource = 'all') = (resource_id = '')),
    UNIQUE (owner, resource, resource_id, callback_digest)
);
-- The notifier: which subscriptions want an event, by five joins of one resource each.
CREATE INDEX subscriptions_resource ON subscriptions (resource, resource_id);
-- The API: the pages of an owner's list.
CREATE INDEX subscriptions_owner ON subscriptions (owner, id);
COMMENT ON TABLE subscriptions IS 'Which events are sent where; changed by people only, so that deliveries read it undisturbed';
COMMENT ON COLUMN subscriptions.types IS 'The events'' types that are wanted; none: all';
COMMENT ON COLUMN subscriptions.secret_generation IS
    'The signing secret is derived from a key file, the id and this; it is not stored';

-- The part of a subscription that changes with each batch of requests: updated in place (HOT), so half of each page stays
-- free.
CREATE TABLE subscription_queues (
    subscription    uuid        PRIMARY KEY,
    due_at          timestamptz,                    -- NULL: nothing is due
    leased_by       uuid,                           -- the notifier that serves it now
    leased_until    timestamptz,
    failures        integer     NOT NULL DEFAULT 0, -- since the last success
    failing_since   timestamptz,
    paused_until    timestamptz,                    -- the circuit breaker: no request before this
    last_success_at timestamptz,
    last_failure_at timestamptz,
    last_failure    text,
    -- A notifier that crashed may have crashed because of what it had leased: the next one leases half as many.
    lease_limit     integer
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- The notifier: what is due next.
CREATE INDEX subscription_queues_due ON subscription_queues (due_at) WHERE due_at IS NOT NULL;
COMMENT ON TABLE subscription_queues IS 'When a subscription is served next, by which notifier, and whether its receiver answers';
COMMENT ON COLUMN subscription_queues.lease_limit IS
    'How many its notifier has leased at most, this one included; 0: this one alone, once more; NULL: it was given back';

-- Events that deliveries have written, and that no notifier has published yet. One index: each costs every delivery.
CREATE TABLE outbox (
    position   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event      uuid        NOT NULL, -- version 7
    type       text        NOT NULL,
    copy_key   bytea       NOT NULL,
    identity   bytea       NOT NULL,
    message_id text        NOT NULL,
    role       text        NOT NULL,
    recipient  text        NOT NULL,
    imap_user  text        NOT NULL,
    mailbox    text        NOT NULL,
    manner     text,                 -- appended, adopted, ...
    attempt    uuid,
    queue_id   text,
    subscription uuid,               -- of a test: whom it is sent to
    host       text        NOT NULL,
    diff       jsonb       NOT NULL,
    created_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0);
COMMENT ON TABLE outbox IS 'Events as they were recorded with their copies; each is deleted when it is published';
COMMENT ON COLUMN outbox.diff IS 'What changed of the copy: {"field": {"---": old, "+++": new}, ...}';

-- The same events once they are published, in the order of their commits: behind a position no lower one can still appear.
CREATE TABLE events (
    position     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event        uuid        NOT NULL UNIQUE, -- the API asks by it; the notifier publishes each once
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
    subscription uuid,
    host         text        NOT NULL,
    diff         jsonb       NOT NULL,
    created_at   timestamptz NOT NULL,
    published_at timestamptz NOT NULL
);
-- The web UI and the API: the events of a message.
CREATE INDEX events_identity ON events (identity);
-- `prune`, and notifications of a span of time that are repeated.
CREATE INDEX events_created_at ON events (created_at);
COMMENT ON TABLE events IS 'What happened to copies, in the order in which it was committed';

-- Events that are still to be sent to a subscription. A row is deleted once the receiver has accepted it.
CREATE TABLE notifications (
    subscription uuid        NOT NULL,
    event        bigint      NOT NULL, -- events.position
    due_at       timestamptz,
    tries        smallint    NOT NULL DEFAULT 0,
    last_status  smallint,             -- the HTTP status of the last try
    last_error   text,
    given_up_at  timestamptz,          -- when it was given up
    PRIMARY KEY (subscription, event)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- The notifier: a subscription's next ones.
CREATE INDEX notifications_due ON notifications (subscription, due_at, event) WHERE due_at IS NOT NULL;
-- `check`, `stats` and the web UI: those that were given up, and since when.
CREATE INDEX notifications_given_up ON notifications (given_up_at) WHERE given_up_at IS NOT NULL;
COMMENT ON TABLE notifications IS 'Events that a subscription has not received yet; due_at NULL: given up';

-- Found by the event, first in the key; `prune` deletes them with their events.
CREATE TABLE notification_attempts (
    subscription uuid        NOT NULL,
    event        bigint      NOT NULL, -- events.position
    started_at   timestamptz NOT NULL,
    host         text        NOT NULL,
    milliseconds integer     NOT NULL,
    status       smallint,             -- of HTTP; NULL: no answer
    outcome      text        NOT NULL,
    response     text,                 -- how the receiver's answer begins
    next_at      timestamptz,          -- when it is tried again
    PRIMARY KEY (event, subscription, started_at)
);
COMMENT ON TABLE notification_attempts IS 'Every try at sending an event to a subscription, and what the receiver answered';

-- Web UI and API ----------------------------------------------------------------------------------------------------
--
-- Of links, sessions and tokens only digests are stored: who reads these tables, or a backup of them, cannot log in with that.
-- All three are 256 random bits, which need no slow hash.

-- Links that log in to the web UI, each valid once.
CREATE TABLE web_logins (
    digest     bytea       PRIMARY KEY CHECK (octet_length(digest) = 32),
    name       text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
    role       text        NOT NULL CHECK (role IN ('viewer', 'reader', 'operator', 'admin')),
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE web_logins IS 'Links that log in to the web UI; a row is deleted as its link is used';

CREATE TABLE web_sessions (
    digest       bytea       PRIMARY KEY CHECK (octet_length(digest) = 32),
    name         text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
    role         text        NOT NULL CHECK (role IN ('viewer', 'reader', 'operator', 'admin')),
    created_at   timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL -- the last request, to the minute
);
COMMENT ON TABLE web_sessions IS 'Who is logged in to the web UI; the digest is of the browser''s cookie';

CREATE TABLE api_tokens (
    digest       bytea       PRIMARY KEY,     -- each request
    id           uuid        NOT NULL UNIQUE, -- `token revoke`
    name         text        NOT NULL CHECK (octet_length(name) <= 48), -- of a subscription, it is the owner
    scopes       text        NOT NULL,
    bounds       text        NOT NULL,
    rate         integer     NOT NULL CHECK (rate > 0),
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);
-- `token revoke`, `token list`: whether that name has another token that is valid.
CREATE INDEX api_tokens_name ON api_tokens (name);
COMMENT ON TABLE api_tokens IS 'Who may use the API; several tokens of one name share their subscriptions';
COMMENT ON COLUMN api_tokens.scopes IS 'What it may do: words, with a space between';
COMMENT ON COLUMN api_tokens.bounds IS 'JSON: the domains, addresses and mailboxes that it is for; none: all';
COMMENT ON COLUMN api_tokens.rate IS 'Requests a second';
COMMENT ON COLUMN api_tokens.last_used_at IS 'To the hour';

-- Messages that clients of the API have submitted. A row is written before the message is in the queue of its host. The id begins
-- with the time, so the primary key is also the order in which `prune` reads.
CREATE TABLE submissions (
    id          text        PRIMARY KEY, -- the message's queue id
    owner       text        NOT NULL CHECK (octet_length(owner) <= 64),
    host        text        NOT NULL,
    identity    bytea       NOT NULL,    -- messages.identity; no foreign key: a submission comes before its message
    lock_digest bytea       NOT NULL,
    recipients  text        NOT NULL,
    created_at  timestamptz NOT NULL
);
COMMENT ON TABLE submissions IS 'Who submitted a message to the API, and which one it is, so that its owner can ask for its state';
COMMENT ON COLUMN submissions.owner IS '"token:" and the name of an API token';
COMMENT ON COLUMN submissions.recipients IS 'JSON: the addresses, in lower case';

-- Who did what: read a message, delivered it again, changed a subscription. A row is written before the act; no role may
-- change or delete one, except that of `prune`. The primary key is the order of the list.
CREATE TABLE operations (
    id         bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    created_at timestamptz NOT NULL,
    actor      text        NOT NULL,
    interface  text        NOT NULL,
    role       text,
    host       text        NOT NULL,
    operation  text        NOT NULL,
    identity   bytea       CHECK (octet_length(identity) = 32),
    message_id text,
    imap_user  text,
    mailbox    text,
    target     text,
    outcome    text        NOT NULL
);
COMMENT ON TABLE operations IS 'Who did what manually, and its outcome';
COMMENT ON COLUMN operations.interface IS 'By the web UI, the command line or the API';
COMMENT ON COLUMN operations.role IS 'The role of that person in the web UI';
COMMENT ON COLUMN operations.identity IS 'Of the message that it was done to; messages.identity, which may be pruned';
COMMENT ON COLUMN operations.target IS 'What else it was done to: a recipient, a subscription, a login';
COMMENT ON COLUMN operations.outcome IS 'The outcome, in one line; empty: it had only begun, and a later row has the outcome';
