-- What a delivery writes into the write-ahead log, and takes on disk, by what its keys begin with and by how many header fields are
-- kept. See README.md, "Keys that begin with a day" and "Bytes on disk".
--
--     psql --quiet --set=by_day=on --set=fields=42 --file=tests/bench/keys/measure.sql DATABASE
--
-- into an empty database of a PostgreSQL that does nothing else, as superuser, from the root of the repository. 400,000 messages
-- of thirty days, each with one copy and one ended attempt; then, after a checkpoint, 1000 deliveries of one copy, of the last day,
-- by the statements that a delivery makes.
\set ON_ERROR_STOP on
SET client_min_messages = warning;
\i sql/postgres/0001_schema.sql
\i sql/postgres/0003_cached_plans.sql
SELECT set_config('measure.by_day', :'by_day', false), set_config('measure.fields', :'fields', false) \g /dev/null

-- A key of the message `n`, of so many before 30 days have passed.
CREATE FUNCTION key(n bigint, kind text) RETURNS bytea LANGUAGE sql AS $$
    SELECT CASE WHEN current_setting('measure.by_day')::bool
           THEN int4send((20750 + n * 30 / 400000)::int) || substr(sha256((kind || n)::bytea), 1, 28)
           ELSE sha256((kind || n)::bytea) END
$$;
ALTER TABLE attempts SET (autovacuum_enabled = off);
ALTER TABLE messages SET (autovacuum_enabled = off);
ALTER TABLE copies SET (autovacuum_enabled = off);
INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, headers, size, recorded_at)
SELECT key(n, 'm'), sha256(('l' || n)::bytea), '<' || n || '@mail.example.com>', sha256(n::text::bytea), 'lisa@gmail.example', '[]',
       4000, now() FROM generate_series(1, 400000) n;
INSERT INTO copies (copy_key, message, role, imap_user, mailbox, recipient, state, delivered_at, updated_at)
SELECT key(n, 'c'), n, 'recipient', 'scuba', 'INBOX', 'scuba@mail.example', 'delivered', now(), now() FROM generate_series(1, 400000) n;
INSERT INTO attempts (copy_key, attempt, role, imap_user, mailbox, identity, lock_digest, message_id, recipient, host, pid, started_at, ended_at)
SELECT key(n, 'c'), gen_random_uuid(), 'recipient', 'scuba', 'INBOX', key(n, 'm'), sha256(('l' || n)::bytea), '<' || n || '@mail.example.com>',
       'scuba@mail.example', 'mx1', 1, now(), now() FROM generate_series(1, 400000) n;
VACUUM ANALYZE;
CHECKPOINT;

CREATE TABLE measured (wal_records bigint, wal_fpi bigint, wal_bytes numeric);
CREATE PROCEDURE deliver(first bigint, last bigint) LANGUAGE plpgsql AS $$
<<this>>
DECLARE
    attempt uuid;
BEGIN
    FOR n IN first..last LOOP
        attempt := gen_random_uuid();
        INSERT INTO attempts (attempt, identity, lock_digest, message_id, queue_id, sender, host, pid, session, started_at,
                              copy_key, role, imap_user, mailbox, recipient, uid_validity, uid_next)
        VALUES (attempt, key(n, 'm'), sha256(('l' || n)::bytea), '<' || n || '@mail.example.com>', '4XyZ', 'lisa@gmail.example', 'mx1', 1,
                pg_backend_pid(), clock_timestamp(), key(n, 'c'), 'recipient', 'scuba', 'INBOX', 'scuba@mail.example', 1, 17);
        COMMIT;
        INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, subject, sent_at,
                              headers, size, recorded_at)
        VALUES (key(n, 'm'), sha256(('l' || n)::bytea), '<' || n || '@mail.example.com>', sha256(n::text::bytea), 'lisa@gmail.example',
            'Lisa', 'scuba', 'Diving', now(),
            (SELECT coalesce(jsonb_agg(jsonb_build_array('X-Field-' || i, md5((n * 100 + i)::text) || md5(i::text))), '[]')
             FROM generate_series(1, current_setting('measure.fields')::int) i), 4000, clock_timestamp())
        ON CONFLICT (identity) DO NOTHING;
        PERFORM maildrop_copy(key(n, 'm'), key(n, 'c'), 'recipient', 'scuba', 'INBOX', 'scuba@mail.example', 1, 17);
        UPDATE attempts a SET ended_at = clock_timestamp(), outcome = 'appended', stages = '{"lock": 0.25, "look": 0.1}'
        WHERE a.copy_key = key(n, 'c') AND a.attempt = this.attempt AND a.ended_at IS NULL;
        COMMIT;
    END LOOP;
END $$;
CREATE TABLE size AS
SELECT relation, pg_total_relation_size(relation) AS total, pg_table_size(relation) AS rows
FROM unnest(ARRAY['messages', 'copies', 'attempts']::regclass[]) AS relation;
SELECT pg_stat_force_next_flush() \g /dev/null
INSERT INTO measured SELECT wal_records, wal_fpi, wal_bytes FROM pg_stat_wal;
SELECT pg_current_wal_insert_lsn() AS from \gset
CALL deliver(400001, 401000);
SELECT pg_current_wal_insert_lsn() AS until \gset
SELECT pg_stat_force_next_flush() \g /dev/null
SELECT :'by_day' AS by_day, (:'until'::pg_lsn - :'from'::pg_lsn) / 1000 AS "WAL bytes a delivery",
       (now.wal_fpi - before.wal_fpi) / 1000.0 AS "full pages a delivery", (now.wal_records - before.wal_records) / 1000.0 AS "records"
FROM pg_stat_wal now, measured before;
SELECT indexrelid::regclass AS index, pg_relation_size(indexrelid) / 401000 AS "bytes a row" FROM pg_index
WHERE indrelid IN ('attempts'::regclass, 'messages'::regclass, 'copies'::regclass) ORDER BY 1::text;
-- A thousand deliveries are few for an index of 400,000 rows: what a row takes there is told by all of them. (TOAST counts to the rows.)
SELECT relation, total / 400000 AS "bytes a row before", pg_total_relation_size(relation) / 401000 AS "after",
       (pg_table_size(relation) - rows) / 1000 AS "a delivery's rows", pg_indexes_size(relation) / 401000 AS "a row in all indexes",
       (pg_table_size(relation) - rows) / 1000 + pg_indexes_size(relation) / 401000 AS "both"
FROM size ORDER BY relation::text;
