-- The epochs of the database: see src/ledger/epoch.rs. Whoever delivers compares the last row with the server's present epoch, and
-- looks in the mailbox for what came before it. The first one has no beginning: until now nothing was forgotten.

CREATE TABLE epochs (
    number bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    epoch  text        NOT NULL,
    since  timestamptz
);
COMMENT ON TABLE epochs IS 'When the server, or what it remembers, became another one';
COMMENT ON COLUMN epochs.since IS 'When that was first seen; NULL: the first';

-- The present epoch: where the server's history began, its timeline, which a promotion makes one higher, and the table itself, which
-- is another one when a dump was restored. By the write-ahead log's own position: pg_control_checkpoint() has the timeline of the
-- last checkpoint, which a promotion does not wait for. NULL where a service lacks one of these functions.
CREATE FUNCTION maildrop_epoch_1(OUT present text, OUT last text, OUT age float8) LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        present := (SELECT concat_ws('/', system_identifier, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
                                     'epochs'::regclass::oid)
                    FROM pg_control_system());
    EXCEPTION WHEN OTHERS THEN
        present := NULL;
    END;
    SELECT e.epoch, extract(epoch FROM clock_timestamp() - e.since) INTO last, age FROM epochs e ORDER BY e.number DESC LIMIT 1;
END $$;

INSERT INTO epochs (epoch) SELECT present FROM maildrop_epoch_1() WHERE present IS NOT NULL;
