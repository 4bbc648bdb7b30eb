"""A stand-in for Azure Service Bus on Qpid Proton: AMQP 1.0, the login by $cbs, and queues.

It is not a broker: it keeps messages in memory, gives all of them to each receiver, and refuses what a
queue's name says. missing-*: not found. full-*: resource limit exceeded. broken-*: internal error.
invalid-*: argument error. revoked-*: the link of the first message ends, not authorized. lost-*: the
connection ends. A token that holds "wrong" is not authorized, and one that holds "expired" is not
either. One that holds "own-queues" is not for outbox-probe.
"""
import sys

from proton import Condition, Delivery, Handler, Message, Terminus, int32
from proton.handlers import MessagingHandler
from proton.reactor import Container

MAX_MESSAGE = 262144
REJECTED = {"full": "amqp:resource-limit-exceeded", "broken": "amqp:internal-error", "invalid": "com.microsoft:argument-error"}


class NotFound(Handler):
    """Ends a link that was opened without a terminus, in a frame of its own."""

    def __init__(self, link):
        self.link = link

    def on_timer_task(self, event):
        self.link.condition = Condition("amqp:not-found", "no such entity")
        self.link.close()


class ServiceBus(MessagingHandler):
    def __init__(self, address):
        super().__init__(auto_accept=False, prefetch=0)
        self.address = address
        self.queues = {}
        self.replies = {}  # connection -> the links that carry responses of $cbs
        self.sent = {}  # link -> how many of its queue's messages it was given

    def on_start(self, event):
        self.acceptor = event.container.listen(self.address)
        print("listening", flush=True)

    def on_link_opening(self, event):
        link = event.link
        name = link.remote_source.address if link.is_sender else link.remote_target.address
        link.snd_settle_mode, link.rcv_settle_mode = link.remote_snd_settle_mode, link.remote_rcv_settle_mode
        if not name.startswith("missing-"):  # else the response has no terminus, which says that it ends at once
            link.source.copy(link.remote_source)
            link.target.copy(link.remote_target)
        if name == "$cbs":
            if link.is_sender:
                self.replies[event.connection] = link
        elif name.startswith("missing-"):
            link.target.type = Terminus.UNSPECIFIED
            link.open()
            event.container.schedule(0, NotFound(link))
            return
        elif not link.is_sender:
            link.max_message_size = MAX_MESSAGE
        link.open()
        if not link.is_sender:
            link.flow(500)

    def on_message(self, event):
        name = event.link.target.address
        if name is None:  # it was sent before the sender knew that the link ends
            return
        event.link.flow(1)
        if name == "$cbs":
            self.accept(event.delivery)
            self.put_token(event)
        elif name.startswith("lost-"):
            event.connection.condition = Condition("amqp:connection:forced", "lost")
            event.connection.close()
        elif name.startswith("revoked-") and name not in self.queues:
            self.queues[name] = []
            event.link.condition = Condition("amqp:unauthorized-access", "revoked, with a comma")
            event.link.close()
        elif name.split("-")[0] in REJECTED:
            event.delivery.local.condition = Condition(REJECTED[name.split("-")[0]], "refused, with a comma")
            event.delivery.update(Delivery.REJECTED)
            event.delivery.settle()
        else:
            self.queues.setdefault(name, []).append(event.message)
            self.accept(event.delivery)

    def put_token(self, event):
        token = str(event.message.body)
        foreign = "own-queues" in token and "outbox-probe" in event.message.properties["name"]
        code = 401 if "wrong" in token or "expired" in token or foreign else 202
        response = Message(correlation_id=event.message.id, properties={"status-code": int32(code), "status-description": "said"})
        response.address = event.message.reply_to
        delivery = self.replies[event.connection].send(response)
        delivery.settle()

    def on_sendable(self, event):
        link = event.link
        queue = self.queues.get(link.source.address, [])
        while link.credit and self.sent.get(link, 0) < len(queue):
            link.send(queue[self.sent.get(link, 0)])
            self.sent[link] = self.sent.get(link, 0) + 1


Container(ServiceBus("127.0.0.1:" + sys.argv[1])).run()
