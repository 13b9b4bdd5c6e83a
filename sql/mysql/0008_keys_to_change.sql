-- For the next migration: what each key in the ledger becomes. Whoever migrates fills it, since SQL cannot read a Date.

CREATE TABLE IF NOT EXISTS keys_by_day (
    was     BINARY(32) NOT NULL,
    becomes BINARY(32) NOT NULL,
    PRIMARY KEY (was)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'what each identity and each copy''s key becomes; while the keys are changed';
