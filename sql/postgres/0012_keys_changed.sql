-- What the change of keys has left behind.

DROP TABLE keys_by_day;
