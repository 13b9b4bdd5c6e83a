-- For measure, beside this file: deliveries of one copy, by the statements that a delivery makes, and what they could write beside them.
SET client_min_messages = warning;
ALTER TABLE attempts SET (autovacuum_enabled = off);
ALTER TABLE messages SET (autovacuum_enabled = off);
ALTER TABLE copies SET (autovacuum_enabled = off);
ALTER TABLE outbox SET (autovacuum_enabled = off);

-- The same with what a notification could say of its message; and with indexes for those who look for events there.
CREATE TABLE fat_outbox (LIKE outbox INCLUDING ALL, payload jsonb NOT NULL);
CREATE TABLE indexed_outbox (LIKE outbox INCLUDING ALL);
CREATE UNIQUE INDEX ON indexed_outbox (event);
CREATE INDEX ON indexed_outbox (identity);
CREATE INDEX ON indexed_outbox (recipient);
CREATE INDEX ON indexed_outbox (imap_user, mailbox);
CREATE INDEX ON indexed_outbox (created_at);
CREATE TABLE noted (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text);

CREATE FUNCTION key(n bigint, kind text) RETURNS bytea LANGUAGE sql AS $$
    SELECT int4send((20750 + n / 13000)::int) || substr(sha256((kind || n)::bytea), 1, 28)
$$;
-- 42 fields of some 80 bytes.
CREATE FUNCTION fields(n bigint) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_agg(jsonb_build_array('X-Field-' || i, md5((n * 100 + i)::text) || md5(i::text))) FROM generate_series(1, 42) i
$$;
CREATE PROCEDURE deliver(first bigint, last bigint, what text) LANGUAGE plpgsql AS $$
<<this>>
DECLARE
    attempt uuid;
    diff jsonb := '{"state": {"+++": "delivered", "---": null}, "uid_validity": {"+++": 1, "---": null}, "uid": {"+++": 17, "---": null}}';
    id text;
BEGIN
    FOR n IN first..last LOOP
        attempt := gen_random_uuid();
        id := '<' || n || '@mail.example.com>';
        INSERT INTO attempts (attempt, identity, lock_digest, message_id, queue_id, sender, host, pid, session, started_at,
                              copy_key, role, imap_user, mailbox, recipient, uid_validity, uid_next)
        VALUES (attempt, key(n, 'm'), sha256(('l' || n)::bytea), id, '4XyZ', 'lisa@gmail.example', 'mx1', 1, pg_backend_pid(),
                clock_timestamp(), key(n, 'c'), 'recipient', 'scuba', 'INBOX', 'scuba@mail.example', 1, 17);
        COMMIT;
        INSERT INTO messages (identity, lock_digest, message_id, content_digest, sender, header_from, header_to, subject, sent_at,
                              headers, size, recorded_at)
        VALUES (key(n, 'm'), sha256(('l' || n)::bytea), id, sha256(n::text::bytea), 'lisa@gmail.example', 'Lisa', 'scuba', 'Diving',
                now(), '[]', 4000, clock_timestamp())
        ON CONFLICT (identity) DO NOTHING;
        PERFORM maildrop_copy(key(n, 'm'), key(n, 'c'), 'recipient', 'scuba', 'INBOX', 'scuba@mail.example', 1, 17);
        UPDATE attempts a SET ended_at = clock_timestamp(), outcome = 'appended', stages = '{"lock": 0.25, "look": 0.1}'
        WHERE a.copy_key = key(n, 'c') AND a.attempt = this.attempt AND a.ended_at IS NULL;
        CASE what
            WHEN 'none' THEN NULL;
            WHEN 'fat' THEN
                INSERT INTO fat_outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt,
                                        queue_id, host, diff, created_at, payload)
                VALUES (gen_random_uuid(), 'message.delivered', key(n, 'c'), key(n, 'm'), id, 'recipient', 'scuba@mail.example', 'scuba',
                        'INBOX', 'appended', attempt, '4XyZ', 'mx1', diff, clock_timestamp(), fields(n));
            WHEN 'indexed' THEN
                INSERT INTO indexed_outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt,
                                            queue_id, host, diff, created_at)
                VALUES (gen_random_uuid(), 'message.delivered', key(n, 'c'), key(n, 'm'), id, 'recipient', 'scuba@mail.example', 'scuba',
                        'INBOX', 'appended', attempt, '4XyZ', 'mx1', diff, clock_timestamp());
            ELSE
                INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner, attempt,
                                    queue_id, host, diff, created_at)
                SELECT gen_random_uuid(), 'message.delivered', key(n, 'c'), key(n, 'm'), id, 'recipient', 'scuba@mail.example', 'scuba',
                       'INBOX', 'appended', attempt, '4XyZ', 'mx1', diff, clock_timestamp()
                WHERE EXISTS (SELECT FROM subscriptions);
                IF what = 'notify' THEN
                    PERFORM pg_notify('told', '');
                END IF;
        END CASE;
        COMMIT;
    END LOOP;
END $$;

CREATE TABLE measured (what text, bytes numeric, place serial);
-- In turns, since a table that grows now and then divides a page of an index.
CREATE PROCEDURE measure(deliveries bigint) LANGUAGE plpgsql AS $$
DECLARE
    first bigint := 1;
    what text;
    began pg_lsn;
BEGIN
    FOR round IN 0..5 LOOP
        FOREACH what IN ARRAY ARRAY['none', 'guard', 'thin', 'notify', 'fat', 'indexed'] LOOP
            IF what IN ('thin', 'notify') THEN
                INSERT INTO subscriptions (id, owner, callback_url, callback_digest, resource, created_at, updated_at)
                    VALUES (gen_random_uuid(), 'us', 'https://example.com/', sha256('x'), 'all', now(), now()) ON CONFLICT DO NOTHING;
            ELSE
                DELETE FROM subscriptions;
            END IF;
            COMMIT;
            began := pg_current_wal_insert_lsn();
            CALL deliver(first, first + deliveries - 1, what);
            first := first + deliveries;
            -- The first round makes the tables' pages.
            IF round > 0 THEN
                INSERT INTO measured (what, bytes) VALUES (what, (pg_current_wal_insert_lsn() - began) / deliveries);
            END IF;
            COMMIT;
        END LOOP;
    END LOOP;
END $$;

-- How a claim of 64 finds the ten that are due among 100,000: the rows that it read and left, the blocks, and its plan.
CREATE FUNCTION claim(moment text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    plan jsonb;
BEGIN
    EXECUTE format('EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
        SELECT subscription FROM subscription_queues WHERE due_at <= %1$s AND (leased_until IS NULL OR leased_until < %1$s)
        ORDER BY due_at LIMIT 64 FOR UPDATE SKIP LOCKED', moment) INTO plan;
    RETURN format('%s, %s (%s)', coalesce((jsonb_path_query_first(plan, '$.**."Rows Removed by Filter"'))::text, '0'),
        (plan->0->'Plan'->>'Shared Hit Blocks')::int + (plan->0->'Plan'->>'Shared Read Blocks')::int,
        (SELECT string_agg(node #>> '{}', ' < ') FROM jsonb_path_query(plan, 'strict $.**."Node Type"') node));
END $$;
