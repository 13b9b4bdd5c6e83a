#!/usr/bin/python3
"""Postfix's pipe(8) runs this once per recipient: the program of the article, as one writes it in an afternoon.

A named lock on the Message-ID in PostgreSQL, the message recorded there, a copy appended to the recipient's INBOX, and one
to the author's Sent mailbox if the author lives here and has none. No journal, no look at what an attempt that died has left.
"""

import argparse
import configparser
import email.utils
import imaplib
import logging
import os
import sys
import time
from email.parser import BytesHeaderParser

import psycopg2

log = logging.getLogger("deliver")


def append(imap_settings, user, mailbox, raw):
    with imaplib.IMAP4(imap_settings["host"], imap_settings.getint("port")) as imap:
        imap.login(f"{user}*{imap_settings['user']}", imap_settings["password"])
        arrived = imaplib.Time2Internaldate(time.time())
        status, answer = imap.append(mailbox, None, arrived, raw)
        if status != "OK" and b"TRYCREATE" in answer[0]:
            imap.create(mailbox)
            status, answer = imap.append(mailbox, None, arrived, raw)
        if status != "OK":
            raise RuntimeError(f"{mailbox} of {user}: {answer}")


def user_of(cursor, address):
    cursor.execute("SELECT imap_user FROM addresses WHERE address = %s", (address.lower(),))
    row = cursor.fetchone()
    return row and row[0]


def deliver_once(cursor, imap_settings, message_id, user, mailbox, raw):
    cursor.execute(
        "INSERT INTO article_copies (message_id, imap_user, mailbox) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (message_id, user, mailbox),
    )
    if cursor.rowcount == 1:
        append(imap_settings, user, mailbox, raw)


def deliver(config, options, raw):
    headers = BytesHeaderParser().parsebytes(raw)
    message_id = headers["Message-ID"]
    connection = psycopg2.connect(config["database"]["dsn"])
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", (message_id,))
            if not cursor.fetchone()[0]:
                print("4.3.0 another delivery of this message is under way")
                return os.EX_TEMPFAIL
            user = user_of(cursor, options.recipient)
            if user is None:
                print("5.1.1 no such user")
                return os.EX_NOUSER
            author = email.utils.parseaddr(headers["From"])[1]
            cursor.execute(
                "INSERT INTO article_messages (message_id, sender, subject, size) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT DO NOTHING",
                (message_id, author, headers["Subject"], len(raw)),
            )
            deliver_once(cursor, config["imap"], message_id, user, "INBOX", raw)
            member = user_of(cursor, author)
            if member is not None:
                deliver_once(cursor, config["imap"], message_id, member, "Sent", raw)
    finally:
        connection.close()
    log.info("%s: %s from %s delivered to %s", options.queue_id, message_id, options.sender, options.recipient)
    print("2.0.0 delivered")
    return os.EX_OK


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="/etc/deliver.ini")
    parser.add_argument("--sender", default="")
    parser.add_argument("--recipient", required=True)
    parser.add_argument("--queue-id", default="")
    options = parser.parse_args()
    try:
        config = configparser.ConfigParser(interpolation=None)
        with open(options.config, encoding="utf-8") as file:
            config.read_file(file)
        logging.basicConfig(
            filename=config["log"]["file"], level=logging.INFO, format="%(asctime)s %(name)s[%(process)d] %(message)s"
        )
        return deliver(config, options, sys.stdin.buffer.read())
    except Exception as error:
        log.exception("%s: not delivered", options.queue_id)
        print(f"4.3.0 {error}")
        return os.EX_TEMPFAIL


if __name__ == "__main__":
    sys.exit(main())
