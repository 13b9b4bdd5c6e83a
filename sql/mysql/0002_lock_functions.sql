-- The lock's names, so that other programs and people can see and take the same lock:
--
--     SELECT IS_USED_LOCK(maildrop_lock_name('<123-abc@mail.example.com>', 'maildrop'));
--
-- An extra: the ledger works without them. Under binary logging MySQL and MariaDB let only SUPER create functions (error
-- 1419) unless log_bin_trust_function_creators is set; `migrate` then leaves them out and says so. Without rights to
-- create routines it does the same.
--
-- Both take the bytes of a Message-ID: white space around it, its angle brackets and what follows them do not count.
-- SHA-256 over: length of the namespace (u32, big-endian), namespace, length of the id (likewise), id.
-- A text argument is taken in the character set it has: for an id beyond ASCII, SET NAMES utf8mb4 first.

DROP FUNCTION IF EXISTS maildrop_lock_name;
DROP FUNCTION IF EXISTS maildrop_lock_key;
DROP FUNCTION IF EXISTS maildrop_lock_digest;

DELIMITER //

CREATE FUNCTION maildrop_lock_digest(message_id LONGBLOB, namespace LONGBLOB) RETURNS CHAR(64) CHARACTER SET ascii
    DETERMINISTIC NO SQL SQL SECURITY INVOKER
    COMMENT 'the lock of a Message-ID: all its digits'
BEGIN
    -- Tab, line feed, form feed and carriage return, read as spaces: where does the id begin, and how long is it?
    DECLARE blanked LONGBLOB DEFAULT
        REPLACE(REPLACE(REPLACE(REPLACE(message_id, X'09', X'20'), X'0A', X'20'), X'0C', X'20'), X'0D', X'20');
    DECLARE id LONGBLOB DEFAULT
        SUBSTRING(message_id, 1 + LENGTH(blanked) - LENGTH(LTRIM(blanked)), LENGTH(TRIM(blanked)));
    IF SUBSTRING(id, 1, 1) = X'3C' THEN
        SET id = SUBSTRING_INDEX(SUBSTRING(id, 2), X'3E', 1);
    END IF;
    RETURN SHA2(
        CONCAT(
            UNHEX(LPAD(HEX(LENGTH(namespace)), 8, '0')), namespace,
            UNHEX(LPAD(HEX(LENGTH(id)), 8, '0')), id
        ),
        256
    );
END//

CREATE FUNCTION maildrop_lock_name(message_id LONGBLOB, namespace LONGBLOB) RETURNS CHAR(57) CHARACTER SET ascii
    DETERMINISTIC NO SQL SQL SECURITY INVOKER
    COMMENT 'for GET_LOCK and IS_USED_LOCK'
RETURN CONCAT('maildrop:', LEFT(maildrop_lock_digest(message_id, namespace), 48))//

CREATE FUNCTION maildrop_lock_key(message_id LONGBLOB, namespace LONGBLOB) RETURNS BIGINT
    DETERMINISTIC NO SQL SQL SECURITY INVOKER
    COMMENT 'the same lock on PostgreSQL: pg_try_advisory_xact_lock'
RETURN CAST(CAST(CONV(LEFT(maildrop_lock_digest(message_id, namespace), 16), 16, 10) AS UNSIGNED) AS SIGNED)//

DELIMITER ;
