-- The rights of the REST API, beside those of the page (grants-web.sql), with whose account it asks the database: where web.api is true;
-- and of the page's screen Subscriptions.
-- Run it as an administrator, after grants-web.sql; put your own names in place of these:
--
--     the database    maildrop
--     the account     'maildrop_page'@'%'

-- Who asks. Tokens are made and revoked by people (grants-operator.sql).
GRANT SELECT, UPDATE (last_used_at) ON maildrop.api_tokens TO 'maildrop_page'@'%';

-- Who is told of what, and what happened.
GRANT SELECT ON maildrop.events TO 'maildrop_page'@'%';
GRANT SELECT ON maildrop.notification_attempts TO 'maildrop_page'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.subscriptions TO 'maildrop_page'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.subscription_queues TO 'maildrop_page'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.notifications TO 'maildrop_page'@'%';
-- A subscriber sends himself a test.
GRANT INSERT ON maildrop.outbox TO 'maildrop_page'@'%';

-- Mail in by HTTP: who is known, and that nobody is refused before that is written down.
GRANT SELECT ON maildrop.addresses TO 'maildrop_page'@'%';
GRANT SELECT ON maildrop.login_checks TO 'maildrop_page'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.unknown_recipients TO 'maildrop_page'@'%';
