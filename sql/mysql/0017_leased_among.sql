-- A notifier that ends without giving back what it had leased may have ended because of that. So the next one leases half as many, and
-- knows from here how many they were.

SET @maildrop_ddl = IF(
    (SELECT count(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'subscription_queues' AND column_name = 'leased_among') = 0,
    'ALTER TABLE subscription_queues ADD COLUMN leased_among INT UNSIGNED NULL COMMENT ''how many at most its notifier has leased, this one included; 0: this one alone, once more; NULL: it was given back''',
    'DO 0');
PREPARE maildrop_ddl FROM @maildrop_ddl;
EXECUTE maildrop_ddl;
DEALLOCATE PREPARE maildrop_ddl;
