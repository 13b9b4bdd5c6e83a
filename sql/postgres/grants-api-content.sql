-- The REST API gives the messages that record.keep_source keeps to tokens with the scope messages:content. This right
-- comes beside those of grants-web.sql and grants-api.sql. The web UI then shows these messages to its readers too. If
-- web.allow_mailbox_access is set, grants-web-mailboxes.sql has given this right already. Run it as the owner of the
-- tables:
--
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_web --file=grants-api-content.sql DATABASE

GRANT SELECT ON message_sources TO :"role";
