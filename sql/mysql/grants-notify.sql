-- The rights of `maildropd`'s role notify, which publishes events and tells them to subscribers: neither a delivery's nor an
-- operator's. Run it as an administrator, for an account of its own, named in the configuration (database.roles.notifier); put your own names
-- in place of these:
--
--     the database    maildrop
--     the account     'maildrop_notify'@'%'
--
-- It sees no source of a message and no address book.

-- CREATE USER 'maildrop_notify'@'%' IDENTIFIED BY 'a third long password' REQUIRE SSL;

GRANT SELECT ON maildrop.maildrop_migrations TO 'maildrop_notify'@'%';

-- Whoever reads rows FOR UPDATE has to have a right to change them.
GRANT SELECT, DELETE ON maildrop.outbox TO 'maildrop_notify'@'%';
GRANT SELECT, INSERT ON maildrop.events TO 'maildrop_notify'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.subscription_queues TO 'maildrop_notify'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON maildrop.notifications TO 'maildrop_notify'@'%';
GRANT SELECT, INSERT ON maildrop.notification_attempts TO 'maildrop_notify'@'%';

-- A receiver that has been gone for days is disabled, and so is one that never answered its first question.
GRANT SELECT, UPDATE (state, state_reason, updated_at, verified_at) ON maildrop.subscriptions TO 'maildrop_notify'@'%';

-- What a notification says of its message.
GRANT SELECT (identity, message_id, sender, header_from, header_to, header_cc, subject, sent_at, headers, size)
    ON maildrop.messages TO 'maildrop_notify'@'%';
