-- The rights of operators: `trace`, `stats`, `audit`, `lock`, `replay` and `prune`. Run it as an
-- administrator, for an account of their own, named in the configuration (database.roles.operator); put your own names
-- in place of these:
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
GRANT INSERT, UPDATE ON maildrop.failures TO 'maildrop_operator'@'%';
GRANT INSERT, UPDATE ON maildrop.login_checks TO 'maildrop_operator'@'%';
GRANT INSERT ON maildrop.epochs TO 'maildrop_operator'@'%';
GRANT INSERT ON maildrop.message_addresses TO 'maildrop_operator'@'%';
GRANT INSERT, UPDATE ON maildrop.message_addresses_read TO 'maildrop_operator'@'%';

GRANT INSERT ON maildrop.outbox TO 'maildrop_operator'@'%';

-- `subscription` manages subscriptions.
GRANT INSERT, UPDATE, DELETE ON maildrop.subscriptions TO 'maildrop_operator'@'%';
GRANT INSERT, UPDATE, DELETE ON maildrop.subscription_queues TO 'maildrop_operator'@'%';
GRANT INSERT, UPDATE, DELETE ON maildrop.notifications TO 'maildrop_operator'@'%';

-- `web` manages the logins of the web UI.
GRANT INSERT, DELETE ON maildrop.web_logins TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.web_sessions TO 'maildrop_operator'@'%';

-- `token` manages the tokens of the API.
GRANT INSERT, UPDATE (revoked_at, last_used_at) ON maildrop.api_tokens TO 'maildrop_operator'@'%';

-- `replay`, `subscription` and `notify` write the operations log.
GRANT INSERT ON maildrop.operations TO 'maildrop_operator'@'%';

-- `lock list`: sessions of other accounts that wait for a lock. This right shows the statements of every account.
-- Without it, `lock list` has only the sessions of this account.
GRANT PROCESS ON *.* TO 'maildrop_operator'@'%';

-- Only `prune` deletes.
GRANT DELETE ON maildrop.attempts TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.message_addresses TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.submissions TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.copies TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.messages TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.message_sources TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.failures TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.events TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.notification_attempts TO 'maildrop_operator'@'%';
GRANT DELETE ON maildrop.operations TO 'maildrop_operator'@'%';
