#!/usr/bin/python3
"""Tells subscribers, as the daemon of the ad platform does, and as one writes it in an afternoon.

A table of tasks; a pool of greenlets. As many tasks are taken as there are free slots; each is POSTed; what was answered is
acknowledged: taken out of the table. Tasks that nobody has acknowledged within a minute are taken again. No order, no schedule of
retries, no signature, nothing kept of what was answered.
"""

from gevent import monkey

monkey.patch_all()

import sys
import time

import psycopg2
import requests
from gevent.pool import Pool
from gevent.socket import wait_read, wait_write
from psycopg2 import extensions

SLOTS = 32

TAKE = """
UPDATE article_tasks SET taken_until = now() + interval '1 minute' WHERE id IN (
    SELECT id FROM article_tasks WHERE taken_until IS NULL OR taken_until < now() ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING id, callback_url, event, body
"""


def wait(connection):
    """Lets other greenlets go on while the database is at work (psycopg's manual, "Support for coroutine libraries")."""
    while (state := connection.poll()) != extensions.POLL_OK:
        if state == extensions.POLL_READ:
            wait_read(connection.fileno())
        else:
            wait_write(connection.fileno())


def main():
    extensions.set_wait_callback(wait)
    connection = psycopg2.connect(sys.argv[1])
    session = requests.Session()
    adapter = requests.adapters.HTTPAdapter(pool_connections=SLOTS, pool_maxsize=SLOTS)
    session.mount("http://", adapter)
    pool, answered = Pool(SLOTS), []

    def post(task, callback_url, event, body):
        headers = {"Content-Type": "application/json", "webhook-id": f"evt_{event}"}
        try:
            answer = session.post(callback_url, data=body.encode(), headers=headers, timeout=15)
            if answer.ok:
                answered.append(task)
        except requests.RequestException as error:
            print(error, file=sys.stderr)

    while True:
        done, answered[:] = answered[:], []
        free = pool.free_count()
        with connection, connection.cursor() as cursor:
            if done:
                cursor.execute("DELETE FROM article_tasks WHERE id = ANY(%s)", (done,))
            if free:
                cursor.execute(TAKE, (free,))
                for row in cursor.fetchall():
                    pool.spawn(post, *row)
        if pool.free_count() == SLOTS:
            # Nothing to do.
            time.sleep(0.25)
        else:
            pool.wait_available()


if __name__ == "__main__":
    main()
