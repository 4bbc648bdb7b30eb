"""A worker of the M10 outbox contract: it takes its turn, claims, sends each event, and records the outcome.

    python3 m10_worker.py DSN NAME HOST:PORT
"""
import http.client
import json
import sys
import time

import psycopg

LOCK, TTL, BATCH = "m10:outbox_processor", 300, 10

dsn, name, destination = sys.argv[1:]
database = psycopg.connect(dsn, autocommit=True)
receiver = http.client.HTTPConnection(destination)


def call(sql, *args):
    return database.execute(sql, args).fetchall()


def send(payload):
    receiver.request("POST", "/", json.dumps(payload))
    response = receiver.getresponse()
    response.read()
    return response.status


print("working", flush=True)
while True:
    if not call("SELECT m10_recovery.acquire_lock(%s, %s, %s)", LOCK, name, TTL)[0][0]:
        time.sleep(0.1)
        continue
    events = call("SELECT * FROM m10_recovery.claim_outbox_events(%s, %s)", name, BATCH)
    for id, aggregate_type, aggregate_id, event_type, payload, retry_count in events:
        status = send(payload)
        error = None if status < 400 else f"HTTP {status}"
        call("SELECT m10_recovery.complete_outbox_event(%s, %s, %s, %s)", id, name, error is None, error)
        call("SELECT m10_recovery.extend_lock(%s, %s, %s)", LOCK, name, TTL)
    call("SELECT m10_recovery.release_lock(%s, %s)", LOCK, name)
    if not events:
        time.sleep(0.05)
