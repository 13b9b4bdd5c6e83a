-- The rights of a web UI that may open mailboxes (web.allow_mailbox_access). It delivers, so it needs those of a
-- delivery (grants.sql) beside those of grants-web.sql. Run all three as the owner of the tables:
--
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_web --file=grants.sql --file=grants-web.sql --file=grants-web-mailboxes.sql DATABASE

-- A message without any copy left is delivered from the source that record.keep_source keeps.
GRANT SELECT ON message_sources TO :"role";
