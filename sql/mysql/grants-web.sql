-- The rights of the web UI: it reads the records of deliveries, and keeps its logins. Run it as an administrator, for
-- an account of its own, named in the configuration (database.roles.web); put your own names in place of these:
--
--     the database    maildrop
--     the account     'maildrop_web'@'%'
--
-- It reads no source of a message and no address book, and changes nothing that a delivery reads.

-- CREATE USER 'maildrop_web'@'%' IDENTIFIED BY 'a fourth long password' REQUIRE SSL;

GRANT SELECT ON maildrop.maildrop_migrations TO 'maildrop_web'@'%';
GRANT SELECT ON maildrop.attempts TO 'maildrop_web'@'%';
GRANT SELECT ON maildrop.messages TO 'maildrop_web'@'%';
GRANT SELECT ON maildrop.copies TO 'maildrop_web'@'%';
GRANT SELECT ON maildrop.failures TO 'maildrop_web'@'%';
GRANT SELECT ON maildrop.message_addresses TO 'maildrop_web'@'%';
GRANT SELECT (message_id) ON maildrop.message_sources TO 'maildrop_web'@'%';

GRANT SELECT, DELETE ON maildrop.web_logins TO 'maildrop_web'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.web_sessions TO 'maildrop_web'@'%';

-- The operations log. Rows are added, never changed or deleted.
GRANT SELECT, INSERT ON maildrop.operations TO 'maildrop_web'@'%';

-- Sessions of other accounts that wait for a lock. This right shows the statements of every account. Without it, the
-- list has only the sessions of this account.
GRANT PROCESS ON *.* TO 'maildrop_web'@'%';
