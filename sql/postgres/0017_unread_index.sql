-- An index that nothing read: tries at telling an event are looked for by the event, whose position comes first in their key.

DROP INDEX notification_attempts_started_at;
