-- Who did what by hand: who looked at what is in a message, who delivered again, who changed a subscription. It is written before what
-- it tells is done, and nobody's role may change or delete a row but that of `prune`.

CREATE TABLE IF NOT EXISTS operations_log (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at         DATETIME(6) NOT NULL COMMENT 'UTC',
    who        VARCHAR(64) NOT NULL,
    way        VARCHAR(32) NOT NULL COMMENT 'by the page, the command line or the API',
    role       VARCHAR(32) NULL COMMENT 'what that person may do on the page',
    host       VARCHAR(255) NOT NULL,
    operation  VARCHAR(64) NOT NULL,
    identity   BINARY(32) NULL COMMENT 'of the message that it was done to; messages.identity, which may be pruned',
    message_id VARCHAR(1024) NULL,
    imap_user  VARCHAR(255) NULL,
    mailbox    VARCHAR(255) NULL,
    object     VARCHAR(1024) NULL COMMENT 'what else it was done to: a recipient, a subscription, a login',
    outcome    VARCHAR(1024) NOT NULL COMMENT 'what came of it, in one line; empty: it had only begun, and a later row tells'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
  COMMENT = 'who did what by hand, and what came of it';
