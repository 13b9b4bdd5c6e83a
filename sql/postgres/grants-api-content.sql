-- The right to hand out the messages that record.keep_source keeps, by the REST API, to tokens with the scope messages:content: beside the rights of
-- grants-web.sql and grants-api.sql. The page shows them to its readers then, too. Where the page may open mailboxes (web.allow_mailbox_access), it
-- has this right already, by grants-web-mailboxes.sql. Run it as the owner of the tables:
--
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_page --file=grants-api-content.sql DATABASE

GRANT SELECT ON message_sources TO :"role";
