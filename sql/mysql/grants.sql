-- The least that a delivery needs. Not a migration: run it by hand, as an administrator, once `migrate` has made the
-- tables. Put your own names and password in place of these:
--
--     the database    maildrop
--     the role        'maildrop'@'%'
--
-- `migrate` needs more (CREATE, ALTER, INDEX, REFERENCES, DROP on the database, and CREATE ROUTINE, ALTER ROUTINE for the
-- lock's functions): give it a role of its own, or run it as an administrator.
--
-- GET_LOCK, RELEASE_LOCK and IS_USED_LOCK need no right. Every account of the server can take any name: an account that
-- is not to be trusted belongs on another server.

-- CREATE USER 'maildrop'@'%' IDENTIFIED BY 'a long password' REQUIRE SSL;

-- Delivery: the whole of it, and nothing is ever deleted.
GRANT SELECT ON maildrop.addresses TO 'maildrop'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.attempts TO 'maildrop'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.messages TO 'maildrop'@'%';
GRANT SELECT, INSERT ON maildrop.message_sources TO 'maildrop'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.copies TO 'maildrop'@'%';
-- What the mailbox store has shown of how it is logged in to.
GRANT SELECT, INSERT, UPDATE ON maildrop.login_checks TO 'maildrop'@'%';
-- When the database became another one.
GRANT SELECT, INSERT ON maildrop.epochs TO 'maildrop'@'%';

-- An event for each change of a copy, where anybody is subscribed: see grants-notify.sql. Whose subscriptions there are is not seen.
GRANT INSERT ON maildrop.outbox TO 'maildrop'@'%';
GRANT SELECT (id) ON maildrop.subscriptions TO 'maildrop'@'%';

-- With routing.unknown_recipient = "reject" only: nobody is refused before that is written down.
GRANT SELECT, INSERT, UPDATE ON maildrop.unknown_recipients TO 'maildrop'@'%';

-- `check` compares the schema with the release. That it finds a server in order needs no more than this: variables can
-- be read by everybody.
GRANT SELECT ON maildrop.maildrop_migrations TO 'maildrop'@'%';

-- Only where `migrate` has made the lock's functions, for people and programs that call them; a delivery does not.
-- GRANT EXECUTE ON FUNCTION maildrop.maildrop_lock_digest TO 'maildrop'@'%';
-- GRANT EXECUTE ON FUNCTION maildrop.maildrop_lock_name TO 'maildrop'@'%';
-- GRANT EXECUTE ON FUNCTION maildrop.maildrop_lock_key TO 'maildrop'@'%';

-- With MySQL (MariaDB tells everybody): `check` counts who reads the binary log, and says whether a fail-over may forget what was delivered.
-- GRANT SELECT (processlist_command) ON performance_schema.threads TO 'maildrop'@'%';

-- With Group Replication: how often the group has changed its members, so that one that was
-- left behind is told from the new primary; whether the server is in the group; and whether it reaches the greater part of it.
-- GRANT SELECT ON performance_schema.replication_group_member_stats TO 'maildrop'@'%';
-- GRANT SELECT ON performance_schema.replication_group_members TO 'maildrop'@'%';
