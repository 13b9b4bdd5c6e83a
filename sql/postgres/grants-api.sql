-- The rights of the REST API (web.api = true) and of the web UI's screen Subscriptions. Both use the role of the web UI
-- (grants-web.sql).
-- Run it as the owner of the tables, after grants-web.sql:
--
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_web --file=grants-web.sql --file=grants-api.sql DATABASE

-- Tokens of clients. People create and revoke them (grants-operator.sql).
GRANT SELECT ON api_tokens TO :"role";
GRANT UPDATE (last_used_at) ON api_tokens TO :"role";

-- Subscriptions, their notifications, and events.
GRANT SELECT ON events, notification_attempts TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON subscriptions, subscription_queues, notifications TO :"role";
-- The test event of a subscription.
GRANT INSERT ON outbox TO :"role";

-- Submission of messages: known recipients, and the record of a refused one.
GRANT SELECT ON addresses, login_checks TO :"role";
GRANT SELECT, INSERT ON unknown_recipients TO :"role";
GRANT UPDATE (count, in_hour, last_at) ON unknown_recipients TO :"role";
-- Who submitted a message, and what became of it.
GRANT SELECT, INSERT ON submissions TO :"role";
