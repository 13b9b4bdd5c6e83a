-- As 0007_cached_plans.sql: the attempts, before the lock, with their envelope sender. That of before stays, for an older program.
-- It locks no table.

CREATE FUNCTION maildrop_journal_2(
    attempt uuid, identity bytea, lock_digest bytea, message_id text, queue_id text, sender text, host text, pid bigint,
    copy_keys bytea[], roles text[], imap_users text[], mailboxes text[], recipients text[],
    uid_validities bigint[], uid_nexts bigint[]
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO attempts (attempt, identity, lock_digest, message_id, queue_id, sender, host, pid, session,
                          copy_key, role, imap_user, mailbox, recipient, uid_validity, uid_next, started_at)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, pg_backend_pid(), c.*, clock_timestamp()
    FROM unnest($9, $10, $11, $12, $13, $14, $15) c;
END $$;
