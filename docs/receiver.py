"""Stores each event once (docs/application.md). Run it: python3 receiver.py PORT, or by a WSGI server: receiver:receive."""
import base64, contextlib, hashlib, hmac, json, sqlite3, sys, time
from wsgiref.simple_server import make_server

def is_signed(header, body):
    """Whether the body was signed with the subscription's secret within the last five minutes."""
    with open("subscription.json") as file:
        key = base64.b64decode(json.load(file)["secret"].removeprefix("whsec_"))
    stamp, signatures = header("TIMESTAMP"), header("SIGNATURE").encode("latin-1").split()
    signed = f"{header('ID')}.{stamp}.".encode("latin-1") + body
    expected = b"v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
    # While a secret is replaced, there are two signatures: by the new one and the old one.
    return any(hmac.compare_digest(expected, one) for one in signatures) and abs(time.time() - int(stamp)) <= 300

def take(event):
    """Stores a delivery, unless it is there, and returns whether it was new. Once it returns, that is committed."""
    if event["type"] != "message.delivered":
        return False
    row = (event["id"], event["resource_id"], event["data"]["copy"]["address"], event["data"]["message"]["id"])
    with contextlib.closing(sqlite3.connect("mail.sqlite")) as store, store:
        store.execute("CREATE TABLE IF NOT EXISTS mail (event TEXT PRIMARY KEY, copy TEXT, address TEXT, message TEXT)")
        return store.execute("INSERT OR IGNORE INTO mail VALUES (?, ?, ?, ?)", row).rowcount == 1

def receive(environ, start_response):
    size = min(int(environ.get("CONTENT_LENGTH") or 0), 1_000_000)  # The rest of a longer body has no signature.
    body = environ["wsgi.input"].read(max(size, 0))
    if not is_signed(lambda name: environ.get(f"HTTP_WEBHOOK_{name}", ""), body):
        start_response("401 Unauthorized", [])
        return []
    event, answer = json.loads(body), {}
    if event["type"] == "subscription.verify":
        answer["challenge"] = event["data"]["challenge"]
    else:
        take(event)  # If it fails, the answer is 500, and the event is sent again.
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]

if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), receive).serve_forever()
