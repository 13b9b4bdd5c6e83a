-- The rights of people who look after deliveries: `trace`, `stats`, `audit`, `lock`, `replay` and `prune`. Run it as an
-- administrator, for an account of their own, named in the configuration (database.roles.operator); put your own names in place of
-- these:
--
--     the database    maildrop
--     the account     'maildrop_operator'@'%'
--
-- `trace`, `stats` and `audit` need only the SELECTs; `audit --repair` writes into the journal, as a delivery does.

-- CREATE USER 'maildrop_operator'@'%' IDENTIFIED BY 'another long password' REQUIRE SSL;

GRANT SELECT ON maildrop.* TO 'maildrop_operator'@'%';

-- `replay` delivers.
GRANT INSERT, UPDATE ON maildrop.attempts TO 'maildrop_operator'@'%';
GRANT INSERT, UPDATE ON maildrop.messages TO 'maildrop_operator'@'%';
GRANT INSERT ON maildrop.message_sources TO 'maildrop_operator'@'%';
GRANT INSERT, UPDATE ON maildrop.copies TO 'maildrop_operator'@'%';
GRANT INSERT, UPDATE ON maildrop.unknown_recipients TO 'maildrop_operator'@'%';
GRANT INSERT, UPDATE ON maildrop.login_checks TO 'maildrop_operator'@'%';
GRANT INSERT ON maildrop.epochs TO 'maildrop_operator'@'%';

GRANT INSERT ON maildrop.outbox TO 'maildrop_operator'@'%';

-- `subscription` changes who is told of what.
GRANT INSERT, UPDATE, DELETE ON maildrop.subscriptions TO 'maildrop_operator'@'%';
GRANT INSERT, UPDATE, DELETE ON maildrop.subscription_queues TO 'maildrop_operator'@'%';
GRANT INSERT, UPDATE, DELETE ON maildrop.notifications TO 'maildrop_operator'@'%';

-- `web` logs people in to the page, and out.
GRANT INSERT, DELETE ON maildrop.web_logins TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.web_sessions TO 'maildrop_operator'@'%';

-- `token` changes who may use the API.
GRANT INSERT, UPDATE (revoked_at, last_used_at) ON maildrop.api_tokens TO 'maildrop_operator'@'%';

-- `replay`, `subscription` and `notify` write down who did what.
GRANT INSERT ON maildrop.operations TO 'maildrop_operator'@'%';

-- `lock list`: who waits for a lock under another account. It shows every account's statements; without it, only those
-- who wait under this account are listed.
GRANT PROCESS ON *.* TO 'maildrop_operator'@'%';

-- `prune` only: nothing else ever deletes.
GRANT DELETE ON maildrop.attempts TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.copies TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.messages TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.message_sources TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.events TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.notification_attempts TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.operations TO 'maildrop_operator'@'%';
