-- For measure-mysql, beside this file: 400,000 messages of thirty days, each with one copy and one ended attempt; and deliveries of one
-- copy, of the last day, by the statements of src/ledger/mysql/mod.rs. @by_day says what keys begin with, @fields how many header fields
-- are kept. After 0001_schema.sql.
SET NAMES utf8mb4;
SET SESSION sql_log_bin = 0;
CREATE TABLE digits (d INT PRIMARY KEY);
INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
CREATE TABLE numbers AS SELECT 100000 * f.d + 10000 * e.d + 1000 * d.d + 100 * c.d + 10 * b.d + a.d + 1 AS n
    FROM digits a, digits b, digits c, digits d, digits e, digits f WHERE f.d < 4;
ALTER TABLE numbers ADD PRIMARY KEY (n);

-- The key of message `n`, of so many before 30 days have passed.
DELIMITER //
CREATE FUNCTION key_of(n BIGINT, kind CHAR(1)) RETURNS BINARY(32) DETERMINISTIC NO SQL
    RETURN IF(@by_day, CONCAT(UNHEX(LPAD(HEX(20750 + n * 30 DIV 400000), 8, '0')), LEFT(UNHEX(SHA2(CONCAT(kind, n), 256)), 28)),
              UNHEX(SHA2(CONCAT(kind, n), 256)))//
-- Ascending, as version 7 of UUIDs is.
CREATE FUNCTION attempt_of(n BIGINT) RETURNS BINARY(16) DETERMINISTIC NO SQL
    RETURN CONCAT(UNHEX(LPAD(HEX(n), 16, '0')), LEFT(UNHEX(SHA2(n, 256)), 8))//
CREATE PROCEDURE deliver(first BIGINT, last BIGINT)
BEGIN
    DECLARE n BIGINT DEFAULT first;
    SET SESSION group_concat_max_len = 1000000;
    WHILE n <= last DO
        SET @headers = IFNULL((SELECT CONCAT('[', GROUP_CONCAT(CONCAT('["X-Field-', i.n, '","', SHA2(n * 100 + i.n, 256), '"]')), ']')
                               FROM numbers i WHERE i.n <= @fields), '[]');
        INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, queue_id, host, pid,
                              session, uid_validity, uid_next, started_at)
            VALUES (attempt_of(n), key_of(n, 'c'), 'recipient', 'scuba', 'INBOX', key_of(n, 'm'), UNHEX(SHA2(CONCAT('l', n), 256)),
                    CONCAT('<', n, '@mail.example.com>'), 'scuba@mail.example', '4XyZ', 'mx1', 1, CONNECTION_ID(), 1, 17, UTC_TIMESTAMP(6));
        START TRANSACTION;
        INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, subject, sent_at, headers, size,
                              recorded_at)
            VALUES (key_of(n, 'm'), UNHEX(SHA2(CONCAT('l', n), 256)), CONCAT('<', n, '@mail.example.com>'), UNHEX(SHA2(n, 256)),
                    'lisa@gmail.example', 'Lisa', 'scuba', 'Diving', UTC_TIMESTAMP(), @headers, 4000, UTC_TIMESTAMP(6))
            ON DUPLICATE KEY UPDATE id = LAST_INSERT_ID(id);
        INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, uid_validity, uid, delivered_at, updated_at)
            VALUES (key_of(n, 'c'), LAST_INSERT_ID(), 'recipient', 'scuba', 'INBOX', 'scuba@mail.example', 'delivered', 1, 17,
                    UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
            ON DUPLICATE KEY UPDATE state = 'delivered';
        UPDATE attempts SET ended_at = UTC_TIMESTAMP(6), outcome = 'appended', stages = '{"lock": 0.25, "look": 0.1}'
            WHERE attempt = attempt_of(n) AND copy_key = key_of(n, 'c') AND ended_at IS NULL;
        COMMIT;
        SET n = n + 1;
    END WHILE;
END//
DELIMITER ;

INSERT INTO messages (id, identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at)
    SELECT n, key_of(n, 'm'), UNHEX(SHA2(CONCAT('l', n), 256)), CONCAT('<', n, '@mail.example.com>'), UNHEX(SHA2(n, 256)), 'lisa@gmail.example',
           '[]', 4000, UTC_TIMESTAMP(6) - INTERVAL (400000 - n) SECOND FROM numbers ORDER BY n;
INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, delivered_at, updated_at)
    SELECT key_of(n, 'c'), n, 'recipient', 'scuba', 'INBOX', 'scuba@mail.example', 'delivered', UTC_TIMESTAMP(6),
           UTC_TIMESTAMP(6) - INTERVAL (400000 - n) SECOND FROM numbers ORDER BY n;
INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, host, pid, started_at, ended_at,
                      outcome)
    SELECT attempt_of(n), key_of(n, 'c'), 'recipient', 'scuba', 'INBOX', key_of(n, 'm'), UNHEX(SHA2(CONCAT('l', n), 256)),
           CONCAT('<', n, '@mail.example.com>'), 'scuba@mail.example', 'mx1', 1, UTC_TIMESTAMP(6) - INTERVAL (400000 - n) SECOND,
           UTC_TIMESTAMP(6) - INTERVAL (400000 - n) SECOND, 'appended' FROM numbers ORDER BY n;
ANALYZE TABLE messages, copies, attempts;
