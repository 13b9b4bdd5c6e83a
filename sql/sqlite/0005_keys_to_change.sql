-- For the next migration: what each key in the ledger becomes. Whoever migrates fills it, since SQL cannot read a Date.

CREATE TABLE keys_by_day (
    was     BLOB PRIMARY KEY NOT NULL,
    becomes BLOB NOT NULL
) STRICT, WITHOUT ROWID;
