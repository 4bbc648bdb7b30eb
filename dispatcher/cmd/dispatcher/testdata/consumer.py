"""An HTTP consumer in Flask, with its records and effects in SQLite: consumer.py PORT DIR right|broken

The right one writes record and effect in one transaction. The broken one looks, acts, and notes, each by itself.
It obeys the files DIR/fail and DIR/crash, which hold "on" or "off".
"""
import os
import sqlite3
import sys

from flask import Flask, request
from werkzeug.serving import make_server

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


app = Flask(__name__)


@app.post("/events")
def take():
    if request.headers["ce-type"] != "ConsumerVerified":
        return "unknown type", 422
    db = connect()
    try:
        {"right": right, "broken": broken}[KIND](db, request.headers["ce-id"])
        return "", 204
    finally:
        db.close()


@app.get("/effects")
def effects():
    db = connect()
    count = db.execute("select count(*) from effects where tracking_id = ?", (request.args["id"],)).fetchone()[0]
    db.close()
    return {"effects": count}


db = connect()
db.execute("create table if not exists processed_events (tracking_id text primary key)")
db.execute("create table if not exists effects (tracking_id text)")
db.close()
server = make_server("127.0.0.1", PORT, app, threaded=True)
print("listening", flush=True)
server.serve_forever()
