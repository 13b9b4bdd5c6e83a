-- Who did what by hand: who looked at what is in a message, who delivered again, who changed a subscription. It is written before what
-- it tells is done, and nobody's role may change or delete a row but that of `prune`.

CREATE TABLE operations_log (
    id         bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL,
    who        text        NOT NULL,
    way        text        NOT NULL,
    role       text,
    host       text        NOT NULL,
    operation  text        NOT NULL,
    identity   bytea       CHECK (octet_length(identity) = 32),
    message_id text,
    imap_user  text,
    mailbox    text,
    object     text,
    outcome    text        NOT NULL
);
COMMENT ON TABLE operations_log IS 'Who did what by hand, and what came of it';
COMMENT ON COLUMN operations_log.way IS 'By the page, the command line or the API';
COMMENT ON COLUMN operations_log.role IS 'What that person may do on the page';
COMMENT ON COLUMN operations_log.identity IS 'Of the message that it was done to; messages.identity, which may be pruned';
COMMENT ON COLUMN operations_log.object IS 'What else it was done to: a recipient, a subscription, a login';
COMMENT ON COLUMN operations_log.outcome IS 'What came of it, in one line; empty: it had only begun, and a later row tells';
