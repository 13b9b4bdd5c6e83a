-- The epochs of the database: see src/ledger/epoch.rs. Whoever delivers compares the last row with the server's present epoch, and
-- looks in the mailbox for what came before it. The first one has no beginning: until now nothing was forgotten.

CREATE TABLE IF NOT EXISTS epochs (
    number BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    epoch  VARCHAR(255) NOT NULL,
    since  DATETIME(6) COMMENT 'UTC: when it was first seen; NULL: the first'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'when the server became another one';

-- MariaDB's servers have no name of their own.
SET @maildrop_dml = CONCAT('INSERT INTO epochs (epoch) SELECT ',
    IF(VERSION() LIKE '%MariaDB%', 'CONCAT(@@hostname, ''/'', @@server_id)', '@@server_uuid'),
    ' FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM epochs)');
PREPARE maildrop_dml FROM @maildrop_dml;
EXECUTE maildrop_dml;
DEALLOCATE PREPARE maildrop_dml;
