-- The envelope sender of each attempt. A message may come with several, and is recorded with that of the first one: which of them
-- brought a copy that the next one finds there, the attempt says. Programs from before it leave it out: not known.
--
-- Nothing is rewritten (PostgreSQL manual, "ALTER TABLE": a column without a default), so the table is locked for a moment, once
-- whoever works on it has ended.

ALTER TABLE attempts ADD COLUMN sender text;
COMMENT ON COLUMN attempts.sender IS 'The envelope sender; empty for the null sender, NULL where it is not known';
