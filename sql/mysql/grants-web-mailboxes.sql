-- The rights of a page that may open mailboxes (web.allow_mailbox_access), beside those of any page (grants-web.sql): those of a delivery, since it
-- delivers again. Run it as an administrator, after grants-web.sql; put your own names in place of these:
--
--     the database    maildrop
--     the account     'maildrop_page'@'%'

GRANT SELECT ON maildrop.addresses TO 'maildrop_page'@'%';
GRANT INSERT, UPDATE ON maildrop.attempts TO 'maildrop_page'@'%';
GRANT INSERT, UPDATE ON maildrop.messages TO 'maildrop_page'@'%';
GRANT INSERT, UPDATE ON maildrop.copies TO 'maildrop_page'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.login_checks TO 'maildrop_page'@'%';
GRANT SELECT, INSERT ON maildrop.epochs TO 'maildrop_page'@'%';
GRANT INSERT ON maildrop.outbox TO 'maildrop_page'@'%';
GRANT SELECT (id) ON maildrop.subscriptions TO 'maildrop_page'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.unknown_recipients TO 'maildrop_page'@'%';

-- A message whose copies are all gone is delivered again from the sources that record.keep_source keeps.
GRANT SELECT, INSERT ON maildrop.message_sources TO 'maildrop_page'@'%';
