"""Durable puts at one member at a steady pace, whether or not those before were answered: what a client of its would
see of the leader's end. Over one connection, each put of a key of its own."""

import os
import threading
import time

from . import grpc

# Of one member. So a moment at which writes are taken again is seen this much late, at most.
EVERY_SECONDS = 0.01
# A put that is not answered by then is given up.
PUT_SECONDS = 1.0
CANCEL = (8).to_bytes(4, "big")
METHOD = "etcdserverpb.KV/Put"


class SteadyPuts:
    """Puts `prefix` + 0, 1, 2, ... to `address` from `with` to its end, on `core` where one is given. Times are
    those of the monotonic clock."""

    def __init__(self, address, prefix, core=None, every=EVERY_SECONDS):
        self.address, self.prefix, self.core, self.every = address, prefix, core, every
        # By the put's number: when it began, and, of those acknowledged, when the answer came.
        self.began, self.acknowledged = [], {}
        # Why there will be no more of them.
        self.lost = None
        self.answered, self.sending, self.over = threading.Lock(), threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.put, self.receive)]

    def __enter__(self):
        try:
            self.connection = grpc.connect(self.address, timeout=None)
            self.connection.sendall(grpc.opening())
        except OSError as error:
            raise grpc.CallFailed(f"puts at {self.address}: {error}") from error
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        try:
            self.connection.shutdown(2)
        except OSError:
            pass
        for thread in self.threads:
            thread.join()
        self.connection.close()

    def key(self, number):
        return self.prefix + b"%d" % number

    def since(self, moment):
        """When those of the puts that began after `moment` were acknowledged that were, in no order."""
        with self.answered:
            return [at for number, at in self.acknowledged.items() if self.began[number] > moment]

    def acknowledged_keys(self):
        with self.answered:
            return {self.key(number) for number in self.acknowledged}

    # The two threads.

    def put(self):
        self.pin()
        first, given_up = time.monotonic(), 0
        while not self.over.wait(max(0, first + len(self.began) * self.every - time.monotonic())):
            number = len(self.began)
            request = grpc.message(f1=self.key(number), f2=b"x")
            frames = grpc.asking(stream_of(number), self.address, METHOD, request)
            # Before it is sent: the answer must find it.
            self.began.append(time.monotonic())
            while self.began[given_up] < self.began[number] - PUT_SECONDS:
                if given_up not in self.acknowledged:
                    frames += grpc.frame(grpc.RESET, 0, stream_of(given_up), CANCEL)
                given_up += 1
            if not self.send(frames):
                return

    def send(self, frames):
        try:
            with self.sending:
                self.connection.sendall(frames)
            return True
        except OSError as error:
            self.lose(f"the connection broke: {error}")
            return False

    def receive(self):
        self.pin()
        try:
            with self.connection.makefile("rb") as stream:
                while frame := grpc.read_frame(stream):
                    self.take(*frame)
            self.lose("the connection was closed")
        except OSError as error:
            self.lose(f"the connection broke: {error}")

    def take(self, kind, flags, stream, payload):
        if kind == grpc.DATA and payload:
            now = time.monotonic()
            with self.answered:
                self.acknowledged.setdefault(number_of(stream), now)
        elif kind == grpc.GOAWAY:
            self.lose(f"the member gave the connection up ({payload.hex()})")
        elif acknowledgement := grpc.acknowledgement(kind, flags, payload):
            self.send(acknowledgement)

    def lose(self, reason):
        if not self.over.is_set():
            self.lost = self.lost or reason

    def pin(self):
        """Of this thread only."""
        if self.core is not None:
            os.sched_setaffinity(0, {self.core})


def stream_of(number):
    return 2 * number + 1


def number_of(stream):
    return stream // 2
