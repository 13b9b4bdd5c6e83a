-- The envelope sender of each attempt. A message may come with several, and is recorded with that of the first one: which of them
-- brought a copy that the next one finds there, the attempt says. Programs from before it leave it out: not known.
--
-- A last column without a default is added at once and rewrites nothing, which both servers do unasked (MySQL manual, "Online DDL
-- Operations"; MariaDB, "Instant ADD COLUMN for InnoDB"). So the table is locked for a moment, once whoever works on it has ended.

SET @maildrop_ddl = IF((SELECT COUNT(*) FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'attempts' AND column_name = 'sender') = 0,
    'ALTER TABLE attempts ADD COLUMN sender TEXT NULL COMMENT ''envelope sender; empty: the null sender; NULL: not known''',
    'DO 0');
PREPARE maildrop_ddl FROM @maildrop_ddl;
EXECUTE maildrop_ddl;
DEALLOCATE PREPARE maildrop_ddl;
