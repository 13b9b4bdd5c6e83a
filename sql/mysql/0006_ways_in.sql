-- Ways of logging in to the mailbox store that were proven: the server, asked for a user who does not exist, has shown that it
-- heeds on whose behalf the service account comes. A delivery reads its row along with `addresses`, and proves anew what was
-- proven too long ago.

CREATE TABLE IF NOT EXISTS ways_in (
    digest    BINARY(32) NOT NULL PRIMARY KEY,
    way_in    TEXT NOT NULL,
    proven_at DATETIME(6) NOT NULL COMMENT 'UTC',
    host      VARCHAR(255) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'ways of logging in to the mailbox store, and when which host last saw where they lead';
