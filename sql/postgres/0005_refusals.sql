-- Recipients that a host has refused for good (`routing.unknown = "reject"`). A delivery refuses nobody before this is
-- written, in the statement that finds the address missing, and its COMMIT is answered: a server that is no primary (any
-- more), or that is cut off from those which have to confirm its commits, knows an older table of addresses.
--
-- One row per host, changed in place: nothing but the key is in an index, and most of each page is left for the next
-- versions of its rows (HOT), which the next change clears away.

CREATE TABLE refusals (
    host    text        PRIMARY KEY,
    refused bigint      NOT NULL,
    last_at timestamptz NOT NULL
) WITH (fillfactor = 10);
COMMENT ON TABLE refusals IS 'How many recipients each host has refused as unknown, and when it last did';
