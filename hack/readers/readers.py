"""Reads CloudEvents with the SDK for Python and the brokers' own clients, and writes each as a line of JSON.

readers.py http N                        listens on 127.0.0.1, and writes its port first
readers.py kafka BROKER TOPIC N
readers.py rabbitmq URL QUEUE N PREFIX   PREFIX is that of the attributes: ce- is read by the RabbitMQ binding,
                                         another by the AMQP 1.0 binding
readers.py amqp URL QUEUE N              RabbitMQ by AMQP 1.0
"""

import base64
import http.server
import json
import sys

from cloudevents.core.bindings import amqp, http as http_binding, kafka, rabbitmq
from cloudevents.core.formats.json import JSONFormat


class Bytes(JSONFormat):
    """The JSON format, with the data of a binary message as its bytes: Python's floats would round numbers."""

    def read_data(self, body, datacontenttype):
        return body


def tell(event, body, key=None):
    attributes = {}
    for name, value in event.get_attributes().items():
        attributes[name] = value.isoformat() if hasattr(value, "isoformat") else str(value)
    print(json.dumps({"attributes": attributes, "data": data(event, body), "key": key}), flush=True)


def data(event, body):
    """The data's bytes in base64. Of a structured message they are cut out of it, and are what the SDK has read."""
    found = event.get_data()
    if not isinstance(found, bytes):
        text = body.decode()
        begin = text.index('"data":') + len('"data":')
        value, end = json.JSONDecoder().raw_decode(text, begin)
        if value != found:
            sys.exit("the SDK read other data")
        found = text[begin:end].encode()
    return base64.b64encode(found).decode()


def read_http(n):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            tell(http_binding.from_http(http_binding.HTTPMessage(dict(self.headers.items()), body), Bytes()), body)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.timeout = 60
    server.handle_timeout = lambda: sys.exit("no request came")
    print(server.server_port, flush=True)
    for _ in range(n):
        server.handle_request()


def read_kafka(broker, topic, n):
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": broker, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    while n > 0:
        record = consumer.poll(60)
        if record is None or record.error():
            sys.exit(f"no record of {topic}: {record and record.error()}")
        message = kafka.KafkaMessage(dict(record.headers()), record.key(), record.value())
        tell(kafka.from_kafka(message, Bytes()), record.value(), record.key().decode())
        n -= 1
    consumer.close()


def read_rabbitmq(url, queue, n, prefix):
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    for _, properties, body in channel.consume(queue, inactivity_timeout=60):
        if body is None:
            sys.exit(f"no message of {queue}")
        if prefix == "ce-":
            event = rabbitmq.from_rabbitmq(rabbitmq.RabbitMQMessage(properties.headers or {}, properties.content_type, body), Bytes())
        else:
            event = amqp.from_amqp(amqp.AMQPMessage({"content-type": properties.content_type}, properties.headers or {}, body), Bytes())
        tell(event, body)
        n -= 1
        if n == 0:
            break
    connection.close()


def read_amqp(url, queue, n):
    from proton.utils import BlockingConnection

    connection = BlockingConnection(url, timeout=60, allowed_mechs="PLAIN")
    receiver = connection.create_receiver("/amq/queue/" + queue, credit=n)
    for _ in range(n):
        message = receiver.receive()
        body = bytes(message.body)
        tell(amqp.from_amqp(amqp.AMQPMessage({"content-type": message.content_type}, message.properties or {}, body), Bytes()), body)
        receiver.accept()
    connection.close()


protocol, *args = sys.argv[1:]
if protocol == "http":
    read_http(int(args[0]))
elif protocol == "kafka":
    read_kafka(args[0], args[1], int(args[2]))
elif protocol == "amqp":
    read_amqp(args[0], args[1], int(args[2]))
else:
    read_rabbitmq(args[0], args[1], int(args[2]), args[3])
