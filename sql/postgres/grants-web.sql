-- The rights of `maildropd`'s page: it reads what deliveries have written, and keeps who is logged in. Run it as the owner of the
-- tables (a superuser for the last line), for a role of its own, named in the configuration (database.roles.web):
--
--     CREATE ROLE maildrop_page LOGIN PASSWORD 'a fourth long password';
--     psql --set=ON_ERROR_STOP=1 --set=role=maildrop_page --file=grants-web.sql DATABASE
--
-- It sees no source of a message and no address book, and changes nothing that a delivery goes by.

GRANT SELECT ON maildrop_migrations, attempts, messages, copies TO :"role";
GRANT SELECT (message_id) ON message_sources TO :"role";

GRANT SELECT, DELETE ON web_logins TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON web_sessions TO :"role";

-- Who did what by hand. Rows are added, and not changed or deleted.
GRANT SELECT, INSERT ON operations TO :"role";

-- Since when a lock is held, and from where, also where another role holds it.
GRANT pg_read_all_stats TO :"role";
