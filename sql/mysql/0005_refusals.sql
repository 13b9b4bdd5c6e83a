-- Recipients that a host has refused for good (`routing.unknown = "reject"`). A delivery refuses nobody before this is
-- written, in the statement that finds the address missing, and its COMMIT is answered: a server that is no primary (any
-- more), or that is cut off from those which have to confirm its commits, knows an older table of addresses. One row per
-- host, changed in place.

CREATE TABLE IF NOT EXISTS refusals (
    host    VARCHAR(255) NOT NULL,
    refused BIGINT UNSIGNED NOT NULL,
    last_at DATETIME(6) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (host)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'how many recipients each host has refused as unknown, and when it last did';
