-- The REST API gives the messages that record.keep_source keeps to tokens with the scope messages:content. This right
-- comes beside those of grants-web.sql and grants-api.sql. The web UI then shows these messages to its readers too. If
-- web.allow_mailbox_access is set, grants-web-mailboxes.sql has given this right already. Run it as an administrator;
-- put your own names in place of these:
--
--     the database    maildrop
--     the account     'maildrop_web'@'%'

GRANT SELECT ON maildrop.message_sources TO 'maildrop_web'@'%';
