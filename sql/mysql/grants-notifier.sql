-- The rights of `maildropd`'s role notifier, which publishes events and sends notifications. It has no right of a
-- delivery or an operator. Run it as an administrator, for an account of its own, named in the configuration
-- (database.roles.notifier); put your own names in place of these:
--
--     the database    maildrop
--     the account     'maildrop_notifier'@'%'
--
-- It reads no source of a message and no address book.

-- CREATE USER 'maildrop_notifier'@'%' IDENTIFIED BY 'a third long password' REQUIRE SSL;

GRANT SELECT ON maildrop.maildrop_migrations TO 'maildrop_notifier'@'%';

-- SELECT ... FOR UPDATE needs a right to change the row.
GRANT SELECT, DELETE ON maildrop.outbox TO 'maildrop_notifier'@'%';
GRANT SELECT, INSERT ON maildrop.events TO 'maildrop_notifier'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.subscription_queues TO 'maildrop_notifier'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.notifications TO 'maildrop_notifier'@'%';
GRANT SELECT, INSERT ON maildrop.notification_attempts TO 'maildrop_notifier'@'%';

-- A subscription whose receiver fails for days, or never answered the verification request, is disabled.
GRANT SELECT, UPDATE (state, state_reason, updated_at, verified_at) ON maildrop.subscriptions TO 'maildrop_notifier'@'%';

-- The columns of a message that a notification has.
GRANT SELECT (identity, message_id, sender, header_from, header_to, header_cc, subject, sent_at, headers, size)
    ON maildrop.messages TO 'maildrop_notifier'@'%';
