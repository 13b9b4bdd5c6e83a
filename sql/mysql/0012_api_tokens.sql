-- Who may use the API, by tokens: what is kept of one is its digest, so that nothing here lets anybody in. A token is 256 random
-- bits, which need no slow hash.

CREATE TABLE IF NOT EXISTS api_tokens (
    digest       BINARY(32) NOT NULL COMMENT 'SHA-256',
    id           BINARY(16) NOT NULL COMMENT 'UUID version 7',
    name         VARCHAR(48) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'several tokens of one name share their subscriptions',
    scopes       TEXT NOT NULL COMMENT 'what it may do: words, with a space between',
    bounds       TEXT NOT NULL COMMENT 'JSON: the domains, addresses and mailboxes that it is for; none: all',
    rate         INT UNSIGNED NOT NULL COMMENT 'requests a second',
    created_at   DATETIME(6) NOT NULL COMMENT 'UTC',
    expires_at   DATETIME(6) NULL COMMENT 'UTC',
    revoked_at   DATETIME(6) NULL COMMENT 'UTC',
    last_used_at DATETIME(6) NULL COMMENT 'UTC, to the hour',
    PRIMARY KEY (digest),
    UNIQUE KEY api_tokens_by_id (id),
    KEY api_tokens_by_name (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'who may use the API';
