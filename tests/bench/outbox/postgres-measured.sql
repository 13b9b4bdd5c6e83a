-- For measure, beside this file: what is measured, one after the other.
SET client_min_messages = warning;
SET synchronous_commit = off;
CALL measure(:deliveries);
SELECT '| ' || :'image', what || ': WAL, bytes a delivery: the median of five, least and most',
       format('%s (%s to %s) |', round(percentile_disc(0.5) WITHIN GROUP (ORDER BY bytes)), round(min(bytes)), round(max(bytes)))
FROM measured GROUP BY what ORDER BY min(place);
INSERT INTO subscription_queues (subscription, due_at)
    SELECT gen_random_uuid(), now() + CASE WHEN n % 10000 = 0 THEN -1 ELSE 1 END * interval '1 hour' FROM generate_series(1, 100000) n;
VACUUM ANALYZE subscription_queues;
SELECT '| ' || :'image', 'a claim by ' || moment || ': rows read and left, blocks, plan', claim(moment) || ' |'
FROM unnest(ARRAY['now()', 'clock_timestamp()']) moment;
