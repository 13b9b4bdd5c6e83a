-- For measure, beside this file: deliveries of one copy, by the statements of src/ledger/mysql/mod.rs, and what they could write beside them.
SET NAMES utf8mb4;
-- The same with what a notification could say of its message.
CREATE TABLE fat_outbox LIKE outbox;
ALTER TABLE fat_outbox ADD COLUMN payload JSON NOT NULL;
DELIMITER //
CREATE FUNCTION key_of(n BIGINT, kind CHAR(1)) RETURNS BINARY(32) DETERMINISTIC NO SQL
    RETURN CONCAT(UNHEX(LPAD(HEX(20750 + n DIV 13000), 8, '0')), LEFT(UNHEX(SHA2(CONCAT(kind, n), 256)), 28))//
-- Ascending, as version 7 of UUIDs is.
CREATE FUNCTION uuid_of(n BIGINT) RETURNS BINARY(16) DETERMINISTIC NO SQL
    RETURN CONCAT(UNHEX(LPAD(HEX(n), 16, '0')), LEFT(UNHEX(SHA2(n, 256)), 8))//
CREATE PROCEDURE deliver(first BIGINT, last BIGINT, what VARCHAR(10))
BEGIN
    DECLARE n BIGINT DEFAULT first;
    SET @diff = '{"state": {"+++": "delivered", "---": null}, "uid_validity": {"+++": 1, "---": null}, "uid": {"+++": 17, "---": null}}';
    DELETE FROM subscriptions;
    IF what = 'thin' THEN
        INSERT INTO subscriptions (id, owner, callback_url, callback_digest, target_digest, resource, types, description, created_at, updated_at)
            VALUES (uuid_of(1), 'us', 'https://example.com/', UNHEX(SHA2('x', 256)), UNHEX(SHA2('x', 256)), 'all', '[]', '', UTC_TIMESTAMP(6),
                    UTC_TIMESTAMP(6));
    END IF;
    WHILE n <= last DO
        INSERT INTO attempts (attempt, copy_key, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, queue_id, host, pid,
                              session, uid_validity, uid_next, started_at)
            VALUES (uuid_of(n), key_of(n, 'c'), 'recipient', 'scuba', 'INBOX', key_of(n, 'm'), UNHEX(SHA2(CONCAT('l', n), 256)),
                    CONCAT('<', n, '@mail.example.com>'), 'scuba@mail.example', '4XyZ', 'mx1', 1, CONNECTION_ID(), 1, 17, UTC_TIMESTAMP(6));
        START TRANSACTION;
        INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, subject, sent_at, headers, size,
                              recorded_at)
            VALUES (key_of(n, 'm'), UNHEX(SHA2(CONCAT('l', n), 256)), CONCAT('<', n, '@mail.example.com>'), UNHEX(SHA2(n, 256)),
                    'lisa@gmail.example', 'Lisa', 'scuba', 'Diving', UTC_TIMESTAMP(), '[]', 4000, UTC_TIMESTAMP(6))
            ON DUPLICATE KEY UPDATE id = LAST_INSERT_ID(id);
        INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, uid_validity, uid, delivered_at, updated_at)
            VALUES (key_of(n, 'c'), LAST_INSERT_ID(), 'recipient', 'scuba', 'INBOX', 'scuba@mail.example', 'delivered', 1, 17,
                    UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
            ON DUPLICATE KEY UPDATE state = 'delivered';
        UPDATE attempts SET ended_at = UTC_TIMESTAMP(6), outcome = 'appended', stages = '{"lock": 0.25, "look": 0.1}'
            WHERE attempt = uuid_of(n) AND copy_key = key_of(n, 'c') AND ended_at IS NULL;
        IF what = 'fat' THEN
            -- 42 fields of some 80 bytes.
            SET @fields = (WITH RECURSIVE i (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM i WHERE i < 42)
                           SELECT JSON_ARRAYAGG(JSON_ARRAY(CONCAT('X-Field-', i), SHA2(n * 100 + i, 256))) FROM i);
            INSERT INTO fat_outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt, queue_id,
                                    host, diff, created_at, payload)
                VALUES (uuid_of(n), 'message.delivered', key_of(n, 'c'), key_of(n, 'm'), CONCAT('<', n, '@mail.example.com>'), 'recipient',
                        'scuba@mail.example', 'scuba', 'INBOX', 'appended', uuid_of(n), '4XyZ', 'mx1', @diff, UTC_TIMESTAMP(6), @fields);
        ELSEIF what <> 'none' THEN
            SELECT EXISTS (SELECT 1 FROM subscriptions) INTO @maildrop_subscribed;
            INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt, queue_id,
                                host, diff, created_at)
                SELECT uuid_of(n), 'message.delivered', key_of(n, 'c'), key_of(n, 'm'), CONCAT('<', n, '@mail.example.com>'), 'recipient',
                       'scuba@mail.example', 'scuba', 'INBOX', 'appended', uuid_of(n), '4XyZ', 'mx1', @diff, UTC_TIMESTAMP(6)
                FROM DUAL WHERE @maildrop_subscribed;
        END IF;
        COMMIT;
        SET n = n + 1;
    END WHILE;
END//
DELIMITER ;
