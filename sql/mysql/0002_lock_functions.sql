-- The lock's names, so that other programs and people can see and take the same lock:
--
--     SELECT IS_USED_LOCK(maildrop_lock_name('<123-abc@mail.example.com>', 'maildrop'));
--
-- Optional: no delivery needs them. Under binary logging MySQL and MariaDB let only SUPER create functions (error 1419),
-- unless log_bin_trust_function_creators is set; `migrate` then leaves them out and says so, as it does without the right to
-- create routines.
--
-- Both take the bytes of a Message-ID: white space around it, its angle brackets and what follows them do not count. SHA-256
-- over: length of the namespace (u32, big-endian), namespace, length of the id (likewise), id. A text argument is taken in the
-- character set it has: for an id beyond ASCII, SET NAMES utf8mb4 first.
--
-- Each body is one expression: no statement has a semicolon in it, and a client needs no DELIMITER.

DROP FUNCTION IF EXISTS maildrop_lock_name;
DROP FUNCTION IF EXISTS maildrop_lock_key;
DROP FUNCTION IF EXISTS maildrop_lock_digest;

-- From the inside: tab, line feed, form feed and carriage return read as spaces; then without white space around; then without
-- angle brackets.
CREATE FUNCTION maildrop_lock_digest(message_id LONGBLOB, namespace LONGBLOB) RETURNS CHAR(64) CHARACTER SET ascii
    DETERMINISTIC NO SQL SQL SECURITY INVOKER
    COMMENT 'the lock of a Message-ID: all its digits'
RETURN (
    SELECT SHA2(
        CONCAT(
            UNHEX(LPAD(HEX(LENGTH(namespace)), 8, '0')), namespace,
            UNHEX(LPAD(HEX(LENGTH(bare.id)), 8, '0')), bare.id
        ),
        256
    )
    FROM (
        SELECT IF(SUBSTRING(trimmed.id, 1, 1) = X'3C', SUBSTRING_INDEX(SUBSTRING(trimmed.id, 2), X'3E', 1), trimmed.id) AS id
        FROM (
            SELECT SUBSTRING(message_id, 1 + LENGTH(spaced.id) - LENGTH(LTRIM(spaced.id)), LENGTH(TRIM(spaced.id))) AS id
            FROM (
                SELECT REPLACE(REPLACE(REPLACE(REPLACE(
                    message_id, X'09', X'20'), X'0A', X'20'), X'0C', X'20'), X'0D', X'20') AS id
            ) AS spaced
        ) AS trimmed
    ) AS bare
);

CREATE FUNCTION maildrop_lock_name(message_id LONGBLOB, namespace LONGBLOB) RETURNS CHAR(57) CHARACTER SET ascii
    DETERMINISTIC NO SQL SQL SECURITY INVOKER
    COMMENT 'for GET_LOCK and IS_USED_LOCK'
RETURN CONCAT('maildrop:', LEFT(maildrop_lock_digest(message_id, namespace), 48));

CREATE FUNCTION maildrop_lock_key(message_id LONGBLOB, namespace LONGBLOB) RETURNS BIGINT
    DETERMINISTIC NO SQL SQL SECURITY INVOKER
    COMMENT 'the same lock on PostgreSQL: pg_try_advisory_xact_lock'
RETURN CAST(CAST(CONV(LEFT(maildrop_lock_digest(message_id, namespace), 16), 16, 10) AS UNSIGNED) AS SIGNED);
