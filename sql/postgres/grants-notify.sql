-- The rights of `maildropd`'s role notify, which publishes events and tells them to subscribers: neither a delivery's nor an
-- operator's. Run it as the owner of the tables, for a role of its own, named in the configuration (database.roles.notifier):
--
--     CREATE ROLE maildrop_notify LOGIN PASSWORD 'a third long password';
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_notify --file=grants-notify.sql DATABASE
--
-- It sees no source of a message and no address book.

GRANT SELECT ON maildrop_migrations TO :"role";

GRANT SELECT, DELETE ON outbox TO :"role";
GRANT SELECT, INSERT ON events TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON subscription_queues, notifications TO :"role";
GRANT SELECT, INSERT ON notification_attempts TO :"role";

-- A receiver that has been gone for days is disabled, and so is one that never answered its first question.
GRANT SELECT ON subscriptions TO :"role";
GRANT UPDATE (state, state_reason, updated_at, verified_at) ON subscriptions TO :"role";

-- What a notification says of its message.
GRANT SELECT (identity, message_id, sender, header_from, header_to, header_cc, subject, sent_at, headers, size)
    ON messages TO :"role";
