-- The rights of operators: `trace`, `stats`, `audit`, `lock`, `replay` and `prune`. Run it after
-- grants.sql, as a superuser (the owner of the tables may do all but the last line), for a role of their own, named in
-- the configuration (database.roles.operator):
--
--     CREATE ROLE maildrop_operator LOGIN PASSWORD 'another long password';
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_operator --file=grants.sql --file=grants-operator.sql DATABASE
--
-- `trace`, `stats`, `audit` and `lock list` need only the SELECTs; `audit --repair` writes
-- into the journal, as a delivery does.

GRANT SELECT ON addresses, maildrop_migrations, attempts, messages, copies, failures, message_sources, message_addresses,
    epochs TO :"role";

-- `subscription` manages subscriptions; `check` and `stats` read their pending notifications.
-- `subscription test` writes an event.
GRANT SELECT, INSERT ON outbox TO :"role";
GRANT SELECT ON events, notification_attempts TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON subscriptions, subscription_queues, notifications TO :"role";

-- `web` manages the logins of the web UI.
GRANT SELECT, INSERT, DELETE ON web_logins, web_sessions TO :"role";

-- `token` manages the tokens of the API.
GRANT SELECT, INSERT ON api_tokens TO :"role";
GRANT UPDATE (revoked_at, last_used_at) ON api_tokens TO :"role";

-- `replay`, `subscription` and `notify` write the operations log.
GRANT SELECT, INSERT ON operations TO :"role";

-- Only `prune` deletes.
GRANT SELECT, DELETE ON submissions TO :"role";
GRANT DELETE ON message_addresses TO :"role";
GRANT DELETE ON attempts, copies, messages, message_sources, failures, events, notification_attempts, operations TO :"role";

-- `lock list`: the time and address of a lock that another role holds. Only a superuser may grant this: if the owner of
-- the tables is none ("permission denied to grant role"), run this line as a superuser. Everything else works without
-- it.
GRANT pg_read_all_stats TO :"role";
