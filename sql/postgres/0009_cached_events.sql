-- As 0007_cached_plans.sql, for push notifications: the look, which says of a copy that is owed why it is, and the event.

CREATE FUNCTION maildrop_look_2(copy_keys bytea[]) RETURNS TABLE (
    place bigint, delivered boolean, uid_validity bigint, uid bigint, attempt uuid, recipient text, age numeric,
    attempt_uid_validity bigint, attempt_uid_next bigint, host text, lock_digest text,
    message_lock_digest text, recorded numeric, owed text
) LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT k.place, coalesce(c.state = 'delivered', false), c.uid_validity, c.uid, a.attempt, a.recipient,
           extract(epoch FROM (SELECT clock_timestamp()) - a.started_at), a.uid_validity, a.uid_next,
           a.host, encode(a.lock_digest, 'hex'),
           encode(m.lock_digest, 'hex'), extract(epoch FROM (SELECT clock_timestamp()) - m.recorded_at),
           CASE WHEN c.state = 'owed' THEN coalesce(c.reason, '') END
    FROM unnest($1) WITH ORDINALITY k (copy_key, place)
    LEFT JOIN copies c ON c.copy_key = k.copy_key
    LEFT JOIN messages m ON m.id = c.message AND c.state = 'delivered'
    LEFT JOIN attempts a ON a.copy_key = k.copy_key AND a.ended_at IS NULL
    ORDER BY k.place, a.started_at, a.attempt;
END $$;

-- Nobody is subscribed: no row, and of subscriptions no more is read than whether it has one.
CREATE FUNCTION maildrop_event_1(
    event uuid, type text, copy_key bytea, identity bytea, message_id text, role text, recipient text, imap_user text,
    mailbox text, manner text, attempt uuid, queue_id text, host text, diff jsonb
) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO outbox (event, type, copy_key, identity, message_id, role, recipient, imap_user, mailbox, manner,
                        attempt, queue_id, host, diff, created_at)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp()
    WHERE EXISTS (SELECT FROM subscriptions);
END $$;
