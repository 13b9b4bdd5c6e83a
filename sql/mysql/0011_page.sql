-- Who may look at the page: links that log somebody in, each good once, and the logins that came of them. Of either the table has a
-- digest only: whoever reads it, or a backup of it, cannot log in with that.

CREATE TABLE IF NOT EXISTS web_logins (
    digest     BINARY(32) NOT NULL,
    name       VARCHAR(64) NOT NULL,
    role       ENUM('viewer', 'reader', 'operator', 'admin') NOT NULL,
    made_at    DATETIME(6) NOT NULL COMMENT 'UTC',
    expires_at DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (digest)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'links that log in to the page; a row is deleted as its link is used';

CREATE TABLE IF NOT EXISTS web_sessions (
    digest   BINARY(32) NOT NULL COMMENT 'of what is in the browser''s cookie',
    name     VARCHAR(64) NOT NULL,
    role     ENUM('viewer', 'reader', 'operator', 'admin') NOT NULL,
    began_at DATETIME(6) NOT NULL COMMENT 'UTC',
    seen_at  DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (digest)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'who is logged in to the page';
