-- For the next migration: what each key in the ledger becomes. Whoever migrates fills it, since SQL cannot read a Date.

CREATE TABLE keys_by_day (
    was     bytea PRIMARY KEY,
    becomes bytea NOT NULL
);
COMMENT ON TABLE keys_by_day IS 'What each identity, and each copy''s key, becomes; while the keys are changed';
