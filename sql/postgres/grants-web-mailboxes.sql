-- The rights of a page that may open mailboxes (web.allow_mailbox_access), beside those of any page (grants-web.sql) and of a delivery (grants.sql),
-- since it delivers again. Run all three as the owner of the tables:
--
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_page --file=grants.sql --file=grants-web.sql --file=grants-web-mailboxes.sql DATABASE

-- A message whose copies are all gone is delivered again from the sources that record.keep_source keeps.
GRANT SELECT ON message_sources TO :"role";
