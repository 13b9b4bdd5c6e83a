-- The envelope sender of each attempt. A message may come with several, and is recorded with that of the first one: which of them
-- brought a copy that the next one finds there, the attempt says. Programs from before it leave it out: not known.
--
-- No row is read or written (SQLite, "ALTER TABLE ADD COLUMN"), so the file is locked for a moment.

ALTER TABLE attempts ADD COLUMN sender TEXT; -- of the envelope; '' is the null sender, NULL: not known
