-- For those who run it: how long the stages of each attempt took, and ways into the ledger by time and by lock.
--
-- None of it makes a delivery look at more rows. A block range index costs an insert next to nothing, since rows arrive
-- in the order of their times; the index on attempts finds what is told of a Message-ID that never got as far as a row in
-- messages, which is the one that somebody asks about at night.

ALTER TABLE attempts ADD COLUMN stages jsonb;
COMMENT ON COLUMN attempts.stages IS 'Milliseconds that each stage of the delivery took, up to its record; NULL while it is open';

CREATE INDEX attempts_lock_digest ON attempts (lock_digest);
CREATE INDEX attempts_started_at ON attempts USING brin (started_at);
CREATE INDEX messages_recorded_at ON messages USING brin (recorded_at);
