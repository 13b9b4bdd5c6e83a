-- The rights of `maildropd`'s role notifier, which publishes events and sends notifications. It has no right of a
-- delivery or an operator. Run it as the owner of the tables, for a role of its own, named in the configuration
-- (database.roles.notifier):
--
--     CREATE ROLE maildrop_notifier LOGIN PASSWORD 'a third long password';
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_notifier --file=grants-notifier.sql DATABASE
--
-- It reads no source of a message and no address book.

GRANT SELECT ON maildrop_migrations TO :"role";

GRANT SELECT, DELETE ON outbox TO :"role";
GRANT SELECT, INSERT ON events TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON subscription_queues, notifications TO :"role";
GRANT SELECT, INSERT ON notification_attempts TO :"role";

-- A subscription whose receiver fails for days, or never answered the verification request, is disabled.
GRANT SELECT ON subscriptions TO :"role";
GRANT UPDATE (state, state_reason, updated_at, verified_at) ON subscriptions TO :"role";

-- The columns of a message that a notification has.
GRANT SELECT (identity, message_id, sender, header_from, header_to, header_cc, subject, sent_at, headers, size)
    ON messages TO :"role";
