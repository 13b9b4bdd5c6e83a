-- The lock's name in SQL, so that other programs and people can take the same lock and see which session holds it. Optional:
-- no delivery needs it, and a role without USAGE on the language SQL may not make it.
--
--     SELECT pg_try_advisory_xact_lock(maildrop_lock_key('<123-abc@mail.example>'));
--
-- The bodies are bound when the functions are made (RETURN, not a string), so that no search_path changes what they do. A
-- Message-ID that is not valid UTF-8 cannot be written as text: its digest stands in attempts.lock_digest.

-- SHA-256 over: length of namespace as 4 bytes, big-endian; namespace; length of Message-ID likewise; Message-ID. White space
-- around the Message-ID, its angle brackets and what follows them do not count.
CREATE FUNCTION maildrop_lock_digest(message_id text, namespace text DEFAULT 'maildrop') RETURNS bytea
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (
        SELECT sha256(int4send(octet_length(space.bytes)) || space.bytes || int4send(octet_length(id.bytes)) || id.bytes)
        FROM (SELECT convert_to(namespace, 'UTF8') AS bytes) AS space,
             (SELECT btrim(message_id, E' \t\n\f\r') AS text) AS trimmed,
             LATERAL (
                 SELECT convert_to(
                     CASE WHEN starts_with(trimmed.text, '<') THEN split_part(substr(trimmed.text, 2), '>', 1)
                          ELSE trimmed.text END,
                     'UTF8') AS bytes
             ) AS id
    );

-- The key of the PostgreSQL advisory lock: the first 8 bytes, big-endian, as a signed bigint.
CREATE FUNCTION maildrop_lock_key(message_id text, namespace text DEFAULT 'maildrop') RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ('x' || encode(substr(maildrop_lock_digest(message_id, namespace), 1, 8), 'hex'))::bit(64)::bigint;

-- The name that the same lock has on MySQL and MariaDB.
CREATE FUNCTION maildrop_lock_name(message_id text, namespace text DEFAULT 'maildrop') RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN 'maildrop:' || encode(substr(maildrop_lock_digest(message_id, namespace), 1, 24), 'hex');
