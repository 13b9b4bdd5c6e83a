-- A block range index knows nothing of rows that came since the last VACUUM: whoever asks for the newest reads all of those. Now it is
-- told of each range of blocks as soon as the next one is begun, by a worker of autovacuum.

ALTER INDEX attempts_started_at SET (autosummarize = on);
ALTER INDEX messages_recorded_at SET (autosummarize = on);
ALTER INDEX events_created_at SET (autosummarize = on);
