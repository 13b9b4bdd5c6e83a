-- The rights of the REST API, beside those of the page (grants-web.sql), with whose role it asks the database: where web.api is true;
-- and of the page's screen Subscriptions.
-- Run it as the owner of the tables, after grants-web.sql:
--
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_page --file=grants-web.sql --file=grants-api.sql DATABASE

-- Who asks. Tokens are made and revoked by people (grants-operator.sql).
GRANT SELECT ON api_tokens TO :"role";
GRANT UPDATE (last_used_at) ON api_tokens TO :"role";

-- Who is told of what, and what happened.
GRANT SELECT ON events, notification_attempts TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON subscriptions, subscription_queues, notifications TO :"role";
-- A subscriber sends himself a test.
GRANT INSERT ON outbox TO :"role";

-- Mail in by HTTP: who is known, and that nobody is refused before that is written down.
GRANT SELECT ON addresses, login_checks TO :"role";
GRANT SELECT, INSERT ON unknown_recipients TO :"role";
GRANT UPDATE (count, last_at) ON unknown_recipients TO :"role";
