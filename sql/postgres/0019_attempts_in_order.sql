-- Attempts in the order of their time. A block range index finds ranges of 128 blocks: the newest fifty attempts lie in five, and once
-- what was pruned leaves gaps, and these are filled anew, each range has old and new ones. Rows come in the order of this index, so an
-- insert goes to its last block, and a delivery writes 78 bytes more into the write-ahead log, of some 16,000 (tests/bench/README.md). The
-- end of an attempt does not touch it.
--
-- Until it is built, some seconds for each few million attempts, deliveries wait, or are put off.

CREATE INDEX attempts_in_order ON attempts (started_at);
DROP INDEX attempts_started_at;
ALTER INDEX attempts_in_order RENAME TO attempts_started_at;
