-- The least rights that a delivery needs. Not a migration: run it once as the owner of the tables, naming the role in
-- the configuration file (and again after each upgrade):
--
--     CREATE ROLE maildrop LOGIN PASSWORD 'a long password';
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop --file=grants.sql DATABASE
--
-- `migrate` is run by the tables' owner, not by this role. `check`, run as this role, says what is missing.

GRANT SELECT ON addresses, maildrop_migrations TO :"role";

GRANT SELECT, INSERT ON attempts, messages, copies TO :"role";
GRANT UPDATE (ended_at, outcome, stages) ON attempts TO :"role";
GRANT UPDATE (recipient, state, uid_validity, uid, reason, delivered_at, updated_at) ON copies TO :"role";

-- Only with routing.unknown_recipient = "reject": a recipient is refused after the row is committed.
GRANT SELECT, INSERT ON unknown_recipients TO :"role";
GRANT UPDATE (count, in_hour, last_at) ON unknown_recipients TO :"role";

-- Proofs that a login leads to the mailboxes of its user.
GRANT SELECT, INSERT ON login_checks TO :"role";
GRANT UPDATE (verified_at, host) ON login_checks TO :"role";

-- Changes of the database server: fail-overs and restores.
GRANT SELECT, INSERT ON epochs TO :"role";
-- Every role may run a function, unless default privileges say otherwise (ALTER DEFAULT PRIVILEGES ... REVOKE EXECUTE ON
-- FUNCTIONS FROM PUBLIC).
GRANT EXECUTE ON FUNCTION maildrop_epoch() TO :"role";

-- Deliveries that fail before their journal. Without these rights only the log has them.
GRANT SELECT, INSERT ON failures TO :"role";
GRANT UPDATE (queue_id, host, cause, imap_user, mailbox, count, last_at) ON failures TO :"role";

-- An event for each change of a copy, if there are subscriptions (grants-notifier.sql). Their owners stay hidden.
GRANT INSERT ON outbox TO :"role";
GRANT SELECT (id, types) ON subscriptions TO :"role";

-- The timer indexes messages by address and deletes old failures, if it acts as this role. No delivery does.
GRANT SELECT, INSERT ON message_addresses, message_addresses_read TO :"role";
GRANT UPDATE (started_at) ON message_addresses_read TO :"role";
GRANT DELETE ON failures TO :"role";

-- With record.keep_source only: keep the source of messages. A delivery never reads it back.
GRANT INSERT, SELECT (message_id) ON message_sources TO :"role";

-- With such default privileges, and if `migrate` has made them (0003_cached_plans.sql): the functions whose plans a
-- session keeps. Without them a delivery sends the statements themselves, which costs the server more.
-- GRANT EXECUTE ON FUNCTION maildrop_addresses, maildrop_look, maildrop_message, maildrop_copy TO :"role";

-- Nothing is ever deleted by a delivery. The lock needs no right at all, and who holds one is found in pg_locks and
-- pg_stat_activity, where every role sees the name that a session of any role gave itself; for how long it has been
-- held shows only between sessions of one role (or of pg_read_all_stats).
