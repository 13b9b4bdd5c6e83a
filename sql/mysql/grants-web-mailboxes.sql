-- The rights of a web UI that may open mailboxes (web.allow_mailbox_access), beside those of grants-web.sql. It
-- delivers, so they are those of a delivery. Run it as an administrator, after grants-web.sql; put your own names in
-- place of these:
--
--     the database    maildrop
--     the account     'maildrop_web'@'%'

GRANT SELECT ON maildrop.addresses TO 'maildrop_web'@'%';
GRANT INSERT, UPDATE ON maildrop.attempts TO 'maildrop_web'@'%';
GRANT INSERT, UPDATE ON maildrop.messages TO 'maildrop_web'@'%';
GRANT INSERT, UPDATE ON maildrop.copies TO 'maildrop_web'@'%';
GRANT INSERT, UPDATE ON maildrop.failures TO 'maildrop_web'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.login_checks TO 'maildrop_web'@'%';
GRANT SELECT, INSERT ON maildrop.epochs TO 'maildrop_web'@'%';
GRANT INSERT ON maildrop.outbox TO 'maildrop_web'@'%';
GRANT SELECT (id) ON maildrop.subscriptions TO 'maildrop_web'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.unknown_recipients TO 'maildrop_web'@'%';

-- A message without any copy left is delivered from the source that record.keep_source keeps.
GRANT SELECT, INSERT ON maildrop.message_sources TO 'maildrop_web'@'%';
