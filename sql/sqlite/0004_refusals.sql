-- Recipients that were refused for good, as on the other engines. Embedded, every address has a Maildir of its own, so that
-- no delivery refuses anybody by now.

CREATE TABLE refusals (
    host    TEXT    PRIMARY KEY NOT NULL,
    refused INTEGER NOT NULL,
    last_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
