-- For those who run it: how long the stages of each attempt took, and ways into the ledger by time and by lock. Attempts
-- lie in the order of their times already: their key begins with a UUID of version 7.

ALTER TABLE attempts ADD COLUMN stages TEXT; -- JSON: milliseconds of each stage, up to the record; NULL while it is open

CREATE INDEX attempts_by_lock ON attempts (lock_digest);
CREATE INDEX messages_by_time ON messages (recorded_at);
