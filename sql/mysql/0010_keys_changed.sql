-- What the change of keys has left behind; and no program from before it can write into the journal: no day that is read has
-- more than two bytes.

SET @maildrop_ddl = IF((SELECT COUNT(*) FROM information_schema.table_constraints
    WHERE constraint_schema = DATABASE() AND table_name = 'attempts' AND constraint_name = 'attempts_by_day') = 0,
    'ALTER TABLE attempts ADD CONSTRAINT attempts_by_day CHECK (SUBSTR(copy_key, 1, 2) = X''0000'')',
    'DO 0');
PREPARE maildrop_ddl FROM @maildrop_ddl;
EXECUTE maildrop_ddl;
DEALLOCATE PREPARE maildrop_ddl;

DROP TABLE IF EXISTS keys_by_day;
