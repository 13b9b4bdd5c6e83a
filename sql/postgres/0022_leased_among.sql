-- A notifier that ends without giving back what it had leased may have ended because of that. So the next one leases half as many, and
-- knows from here how many they were.
ALTER TABLE subscription_queues ADD COLUMN IF NOT EXISTS leased_among integer;
COMMENT ON COLUMN subscription_queues.leased_among IS
    'How many at most its notifier has leased, this one included; 0: this one alone, once more; NULL: it was given back';
