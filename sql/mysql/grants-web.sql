-- The rights of `maildropd`'s page: it reads what deliveries have written, and keeps who is logged in. Run it as an administrator, for
-- an account of its own, named in the configuration (database.roles.web); put your own names in place of these:
--
--     the database    maildrop
--     the account     'maildrop_page'@'%'
--
-- It sees no source of a message and no address book, and changes nothing that a delivery goes by.

-- CREATE USER 'maildrop_page'@'%' IDENTIFIED BY 'a fourth long password' REQUIRE SSL;

GRANT SELECT ON maildrop.maildrop_migrations TO 'maildrop_page'@'%';
GRANT SELECT ON maildrop.attempts TO 'maildrop_page'@'%';
GRANT SELECT ON maildrop.messages TO 'maildrop_page'@'%';
GRANT SELECT ON maildrop.copies TO 'maildrop_page'@'%';
GRANT SELECT (message_id) ON maildrop.message_sources TO 'maildrop_page'@'%';

GRANT SELECT, DELETE ON maildrop.web_logins TO 'maildrop_page'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.web_sessions TO 'maildrop_page'@'%';

-- Who did what by hand. Rows are added, and not changed or deleted.
GRANT SELECT, INSERT ON maildrop.operations TO 'maildrop_page'@'%';

-- Who waits for a lock under another account. It shows every account's statements; without it, only those who wait under this
-- account are listed.
GRANT PROCESS ON *.* TO 'maildrop_page'@'%';
