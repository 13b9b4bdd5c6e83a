-- The rights of the REST API (web.api = true) and of the web UI's screen Subscriptions. Both use the account of the web
-- UI (grants-web.sql).
-- Run it as an administrator, after grants-web.sql; put your own names in place of these:
--
--     the database    maildrop
--     the account     'maildrop_web'@'%'

-- Tokens of clients. People create and revoke them (grants-operator.sql).
GRANT SELECT, UPDATE (last_used_at) ON maildrop.api_tokens TO 'maildrop_web'@'%';

-- Subscriptions, their notifications, and events.
GRANT SELECT ON maildrop.events TO 'maildrop_web'@'%';
GRANT SELECT ON maildrop.notification_attempts TO 'maildrop_web'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.subscriptions TO 'maildrop_web'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.subscription_queues TO 'maildrop_web'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.notifications TO 'maildrop_web'@'%';
-- The test event of a subscription.
GRANT INSERT ON maildrop.outbox TO 'maildrop_web'@'%';

-- Submission of messages: known recipients, and the record of a refused one.
GRANT SELECT ON maildrop.addresses TO 'maildrop_web'@'%';
GRANT SELECT ON maildrop.login_checks TO 'maildrop_web'@'%';
GRANT SELECT, INSERT, UPDATE ON maildrop.unknown_recipients TO 'maildrop_web'@'%';
-- Who submitted a message, and what became of it.
GRANT SELECT, INSERT ON maildrop.submissions TO 'maildrop_web'@'%';
