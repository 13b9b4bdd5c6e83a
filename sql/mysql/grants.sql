-- The least rights of a delivery. Not a migration: run it as an administrator, once `migrate` has made the tables. Put
-- your own names and password in place of these:
--
--     the database    maildrop
--     the role        'maildrop'@'%'
--
-- `migrate` needs more (CREATE, ALTER, INDEX, REFERENCES, DROP on the database, and CREATE ROUTINE, ALTER ROUTINE for
-- the lock's functions): give it a role of its own, or run it as an administrator.
--
-- GET_LOCK, RELEASE_LOCK and IS_USED_LOCK need no right. Every account of the server can take any lock name: keep
-- accounts that you do not trust on another server.

-- CREATE USER 'maildrop'@'%' IDENTIFIED BY 'a long password' REQUIRE SSL;

-- A delivery. It never deletes.
GRANT SELECT ON maildrop.addresses TO 'maildrop'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.attempts TO 'maildrop'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.messages TO 'maildrop'@'%';
GRANT SELECT, INSERT ON maildrop.message_sources TO 'maildrop'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.copies TO 'maildrop'@'%';
-- Proofs that a login leads to the mailboxes of its user.
GRANT SELECT, INSERT, UPDATE ON maildrop.login_checks TO 'maildrop'@'%';
-- Changes of the database server: fail-overs and restores.
GRANT SELECT, INSERT ON maildrop.epochs TO 'maildrop'@'%';

-- Deliveries that fail before their journal. Without these rights only the log has them.
GRANT SELECT, INSERT, UPDATE ON maildrop.failures TO 'maildrop'@'%';

-- The timer indexes messages by address and deletes old failures, if it acts as this account. No delivery does.
GRANT SELECT, INSERT ON maildrop.message_addresses TO 'maildrop'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.message_addresses_read TO 'maildrop'@'%';
GRANT DELETE ON maildrop.failures TO 'maildrop'@'%';

-- An event for each change of a copy, if there are subscriptions (grants-notifier.sql). Their owners stay hidden.
GRANT INSERT ON maildrop.outbox TO 'maildrop'@'%';
GRANT SELECT (id,types) ON maildrop.subscriptions TO 'maildrop'@'%';

-- Only with routing.unknown_recipient = "reject": a recipient is refused after the row is committed.
GRANT SELECT, INSERT, UPDATE ON maildrop.unknown_recipients TO 'maildrop'@'%';

-- `check` compares the schema with the release. Every account can read the server's variables.
GRANT SELECT ON maildrop.maildrop_migrations TO 'maildrop'@'%';

-- Only if `migrate` has made the lock's functions, for people and programs that call them. A delivery does not.
-- GRANT EXECUTE ON FUNCTION maildrop.maildrop_lock_digest TO 'maildrop'@'%';
-- GRANT EXECUTE ON FUNCTION maildrop.maildrop_lock_name TO 'maildrop'@'%';
-- GRANT EXECUTE ON FUNCTION maildrop.maildrop_lock_key TO 'maildrop'@'%';

-- Group Replication: the group's view distinguishes a former primary from the new one. Also whether the server is in the
-- group, and reaches the majority of it.
-- GRANT SELECT ON performance_schema.replication_group_member_stats TO 'maildrop'@'%';
-- GRANT SELECT ON performance_schema.replication_group_members TO 'maildrop'@'%';
