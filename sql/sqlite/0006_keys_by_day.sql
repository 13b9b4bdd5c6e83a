-- Keys that begin with a day. The first four bytes of a message's identity, and of its copies' keys, are the UTC day of the
-- message's own Date, in days since 1970-01-01, big-endian; the other 28 are of the digest that was all of it before. Messages
-- of one day then lie together, and what is inserted comes to the end of each index.
--
-- Programs from before it look for other keys. No release has been made, so this is the one change of keys; it is put off while
-- an attempt is open that may be running, and the trigger keeps programs from before it out of the journal.

UPDATE attempts SET
    copy_key = (SELECT becomes FROM keys_by_day WHERE was = copy_key),
    identity = (SELECT becomes FROM keys_by_day WHERE was = identity);
UPDATE copies SET copy_key = (SELECT becomes FROM keys_by_day WHERE was = copy_key);
UPDATE messages SET identity = (SELECT becomes FROM keys_by_day WHERE was = identity);

CREATE TRIGGER attempts_by_day BEFORE INSERT ON attempts WHEN substr(new.copy_key, 1, 2) <> x'0000'
BEGIN
    SELECT RAISE(ABORT, 'this program is older than the ledger: its keys do not begin with a day');
END;

DROP TABLE keys_by_day;
