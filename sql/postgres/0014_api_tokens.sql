-- Who may use the API, by tokens: what is kept of one is its digest, so that nothing here lets anybody in. A token is 256 random
-- bits, which need no slow hash.

CREATE TABLE api_tokens (
    digest       bytea       PRIMARY KEY,
    id           uuid        NOT NULL UNIQUE,
    name         text        NOT NULL CHECK (octet_length(name) <= 48),
    scopes       text        NOT NULL,
    bounds       text        NOT NULL,
    rate         integer     NOT NULL CHECK (rate > 0),
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX api_tokens_name ON api_tokens (name);
COMMENT ON TABLE api_tokens IS 'Who may use the API; several tokens of one name share their subscriptions';
COMMENT ON COLUMN api_tokens.scopes IS 'What it may do: words, with a space between';
COMMENT ON COLUMN api_tokens.bounds IS 'JSON: the domains, addresses and mailboxes that it is for; none: all';
COMMENT ON COLUMN api_tokens.rate IS 'Requests a second';
COMMENT ON COLUMN api_tokens.last_used_at IS 'To the hour';
