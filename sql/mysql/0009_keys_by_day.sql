-- Keys that begin with a day. The first four bytes of a message's identity, and of its copies' keys, are the UTC day of the
-- message's own Date, in days since 1970-01-01, big-endian; the other 28 are of the digest that was all of it before. Messages
-- of one day then lie together, and what is inserted comes to the end of each index: a digest alone is put anywhere.
--
-- No release has been made, so this is the one change of keys. Deliver nothing meanwhile: programs from before it look for
-- other keys. It is refused while an attempt is open for which somebody may come back, and where a row comes while it runs.
-- Nothing here defines anything: all of it, and its record, are one transaction.

UPDATE attempts SET
    copy_key = (SELECT becomes FROM keys_by_day WHERE was = copy_key),
    identity = (SELECT becomes FROM keys_by_day WHERE was = identity);
UPDATE copies SET copy_key = (SELECT becomes FROM keys_by_day WHERE was = copy_key);
UPDATE messages SET identity = (SELECT becomes FROM keys_by_day WHERE was = identity);
