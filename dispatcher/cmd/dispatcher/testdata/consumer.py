"""An HTTP consumer with its records and effects in SQLite: consumer.py PORT DIR right|broken

The right one writes record and effect in one transaction. The broken one looks, acts, and notes, each by itself.
It obeys the files DIR/fail and DIR/crash, which hold "on" or "off".
"""
import os
import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PORT, DIR, KIND = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def connect():
    db = sqlite3.connect(os.path.join(DIR, "db"), timeout=30, isolation_level=None)
    db.execute("pragma synchronous = off")
    return db


def asked(hook):
    try:
        with open(os.path.join(DIR, hook)) as file:
            return file.read().strip() == "on"
    except FileNotFoundError:
        return False


def effect(db, event):
    if asked("fail"):
        raise RuntimeError("the effect failed")
    db.execute("insert into effects values (?)", (event,))
    if asked("crash"):
        os._exit(1)


def right(db, event):
    db.execute("begin immediate")
    try:
        if db.execute("insert into processed_events values (?) on conflict do nothing", (event,)).rowcount == 1:
            effect(db, event)
        db.execute("commit")
    except BaseException:
        db.execute("rollback")
        raise


def broken(db, event):
    if db.execute("select 1 from processed_events where tracking_id = ?", (event,)).fetchone() is None:
        effect(db, event)
        db.execute("insert or ignore into processed_events values (?)", (event,))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        db = connect()
        try:
            {"right": right, "broken": broken}[KIND](db, self.headers["ce-id"])
            self.answer(204)
        except Exception:
            self.answer(500)
        finally:
            db.close()

    def do_GET(self):
        db = connect()
        event = parse_qs(urlsplit(self.path).query)["id"][0]
        count = db.execute("select count(*) from effects where tracking_id = ?", (event,)).fetchone()[0]
        db.close()
        self.answer(200, b'{"effects": %d}' % count)

    def answer(self, status, body=b""):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


db = connect()
db.execute("create table if not exists processed_events (tracking_id text primary key)")
db.execute("create table if not exists effects (tracking_id text)")
db.close()
server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
print("listening", flush=True)
server.serve_forever()
