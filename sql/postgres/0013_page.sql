-- Who may look at the page: links that log somebody in, each good once, and the logins that came of them. Of either the table has a
-- digest only: whoever reads it, or a backup of it, cannot log in with that.

CREATE TABLE web_logins (
    digest     bytea       PRIMARY KEY CHECK (octet_length(digest) = 32),
    name       text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
    role       text        NOT NULL CHECK (role IN ('viewer', 'reader', 'operator', 'admin')),
    made_at    timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE web_logins IS 'Links that log in to the page; a row is deleted as its link is used';

CREATE TABLE web_sessions (
    digest   bytea       PRIMARY KEY CHECK (octet_length(digest) = 32),
    name     text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
    role     text        NOT NULL CHECK (role IN ('viewer', 'reader', 'operator', 'admin')),
    began_at timestamptz NOT NULL,
    seen_at  timestamptz NOT NULL
);
COMMENT ON TABLE web_sessions IS 'Who is logged in to the page; the digest is of what is in the browser''s cookie';
