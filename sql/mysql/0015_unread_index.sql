-- An index that nothing read, and that each try wrote to: tries at telling an event are looked for by the event, whose position comes
-- first in their key.

SET @maildrop_ddl = IF((SELECT COUNT(*) FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'notification_attempts' AND index_name = 'notification_attempts_by_time') > 0,
    'ALTER TABLE notification_attempts DROP KEY notification_attempts_by_time',
    'DO 0');
PREPARE maildrop_ddl FROM @maildrop_ddl;
EXECUTE maildrop_ddl;
DEALLOCATE PREPARE maildrop_ddl;
