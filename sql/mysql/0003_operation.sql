-- For those who run it: how long the stages of each attempt took, and ways into the ledger by time and by lock.
--
-- None of it makes a delivery look at more rows. Attempts lie in the order of their times already (their key begins with
-- a UUID of version 7). The index on attempts finds what is told of a Message-ID that never got as far as a row in
-- messages, which is the one that somebody asks about at night.
--
-- Every statement may be run again, and MySQL has no ADD COLUMN IF NOT EXISTS: each asks first.

SET @maildrop_ddl = IF((SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'attempts' AND column_name = 'stages') = 0,
    'ALTER TABLE attempts
        ADD COLUMN stages JSON NULL COMMENT ''milliseconds of each stage, up to the record; NULL while open'',
        ADD KEY attempts_by_lock (lock_digest)',
    'DO 0');
PREPARE maildrop_ddl FROM @maildrop_ddl;
EXECUTE maildrop_ddl;
DEALLOCATE PREPARE maildrop_ddl;

SET @maildrop_ddl = IF((SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'messages' AND index_name = 'messages_by_time') = 0,
    'ALTER TABLE messages ADD KEY messages_by_time (recorded_at)',
    'DO 0');
PREPARE maildrop_ddl FROM @maildrop_ddl;
EXECUTE maildrop_ddl;
DEALLOCATE PREPARE maildrop_ddl;
