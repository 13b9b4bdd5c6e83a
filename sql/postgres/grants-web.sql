-- The rights of the web UI: it reads the records of deliveries, and keeps its logins. Run it as the owner of the
-- tables (a superuser for the last line), for a role of its own, named in the configuration (database.roles.web):
--
--     CREATE ROLE maildrop_web LOGIN PASSWORD 'a fourth long password';
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_web --file=grants-web.sql DATABASE
--
-- It reads no source of a message and no address book, and changes nothing that a delivery reads.

GRANT SELECT ON maildrop_migrations, attempts, messages, copies, failures, message_addresses TO :"role";
GRANT SELECT (message_id) ON message_sources TO :"role";

GRANT SELECT, DELETE ON web_logins TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON web_sessions TO :"role";

-- The operations log. Rows are added, never changed or deleted.
GRANT SELECT, INSERT ON operations TO :"role";

-- The time and address of a lock that another role holds.
GRANT pg_read_all_stats TO :"role";
