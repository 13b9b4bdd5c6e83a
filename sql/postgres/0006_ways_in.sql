-- Ways of logging in to the mailbox store that were proven: the server, asked for a user who does not exist, has shown that it
-- heeds on whose behalf the service account comes. A delivery reads its row along with `addresses`, and proves anew what was
-- proven too long ago.

CREATE TABLE ways_in (
    digest    bytea       PRIMARY KEY,
    way_in    text        NOT NULL,
    proven_at timestamptz NOT NULL,
    host      text        NOT NULL
);
COMMENT ON TABLE ways_in IS 'Ways of logging in to the mailbox store, and when which host last saw where they lead';
