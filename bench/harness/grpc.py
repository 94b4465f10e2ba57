"""One unary gRPC call over a connection of its own, for the checks beside the load: as little HTTP/2 as that takes.

The status of a failed call is not read, since that takes HPACK's tables: a call without a message in its answer has
failed.
"""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
KEYS = b"/bench/key/"


class CallFailed(Exception):
    """A call that got no answer."""


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    """A header as HPACK's literal without indexing and without Huffman; both are shorter than 127 bytes."""
    name, value = name.encode(), value.encode()
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(**fields):
    """A protobuf message: `f1=b"key", f9=True`; nothing for fields that are 0 or empty."""
    out = b""
    for name, value in fields.items():
        number = int(name[1:])
        if isinstance(value, bytes):
            out += varint(number << 3 | 2) + varint(len(value)) + value if value else b""
        elif value:
            out += varint(number << 3) + varint(int(value))
    return out


def fields(data):
    """A protobuf message's last value of each field: ints for varints, bytes for what has a length."""
    return dict(every_field(data))


def every_field(data):
    """A protobuf message's fields as they come, repeated ones too: (number, value)."""
    at = 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, number()
        elif kind == 2:
            length = number()
            yield tag >> 3, data[at : at + length]
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise CallFailed(f"the answer holds a field of wire type {kind}")


def opening():
    """What a connection begins with; the answers on it may have 16 MiB together before more is allowed."""
    return PREFACE + frame(SETTINGS, 0, 0, b"") + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 24))


def asking(stream, address, method, request):
    """The frames of a whole call."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", f"/{method}"), (":authority", address)]
    headers += [("content-type", "application/grpc"), ("te", "trailers")]
    body = b"\0" + struct.pack(">I", len(request)) + request
    head = frame(HEADERS, END_HEADERS, stream, b"".join(literal(*header) for header in headers))
    return head + frame(DATA, END_STREAM, stream, body)


def connect(address, timeout):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=timeout)


def call(address, method, request, timeout=60):
    """The answer's message to `method`, as `etcdserverpb.KV/Range`: its fields' last values."""
    return fields(ask(address, method, request, timeout))


def ask(address, method, request, timeout=60):
    """The answer's bytes."""
    try:
        with connect(address, timeout) as connection:
            connection.sendall(opening() + asking(1, address, method, request))
            answer = receive(connection, connection.makefile("rb"))
    except OSError as error:
        raise CallFailed(f"{method} at {address}: {error}") from error
    if len(answer) < 5:
        raise CallFailed(f"{method} at {address}: no message in the answer")
    return answer[5:]


def read_frame(stream):
    """The next frame's kind, flags, stream and payload; None at the end."""
    head = stream.read(9)
    if len(head) < 9:
        return None
    payload = stream.read(int.from_bytes(head[:3], "big"))
    return head[3], head[4], int.from_bytes(head[5:], "big"), payload


def acknowledgement(kind, flags, payload):
    """What a frame has to be answered by; None for those that are not."""
    if kind == SETTINGS and not flags & ACK:
        return frame(SETTINGS, ACK, 0, b"")
    if kind == PING and not flags & ACK:
        return frame(PING, ACK, 0, payload)
    return None


def receive(connection, stream):
    """The data of stream 1, to its end."""
    answer = b""
    while found := read_frame(stream):
        kind, flags, _, payload = found
        if due := acknowledgement(kind, flags, payload):
            connection.sendall(due)
        elif kind == DATA:
            answer += payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
        elif kind in (RESET, GOAWAY):
            raise CallFailed(f"the server gave the call up ({payload.hex()})")
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            return answer
    raise CallFailed("the connection was closed before the answer")


def status(address):
    """What Maintenance/Status says: the etcd version, the backend's size in bytes."""
    answer = call(address, "etcdserverpb.Maintenance/Status", b"", timeout=5)
    return {"version": answer[2].decode(), "db_bytes": answer.get(3, 0)}


def leads(address):
    """Whether the member at this address is the leader."""
    answer = call(address, "etcdserverpb.Maintenance/Status", b"", timeout=5)
    return answer.get(4, 0) != 0 and answer.get(4) == fields(answer[1]).get(2)


def count(address, prefix=KEYS):
    """How many keys there are with a prefix, and the revision, linearizable."""
    end = prefix[:-1] + bytes([prefix[-1] + 1])
    answer = call(address, "etcdserverpb.KV/Range", message(f1=prefix, f2=end, f9=True))
    return {"keys": answer.get(4, 0), "revision": fields(answer[1]).get(3, 0)}


def keys(address, prefix):
    """The keys with a prefix, linearizable."""
    end = prefix[:-1] + bytes([prefix[-1] + 1])
    request = message(f1=prefix, f2=end, f8=True)
    answer = ask(address, "etcdserverpb.KV/Range", request)
    return {fields(value)[1] for number, value in every_field(answer) if number == 2}


def revision(address):
    """The store's revision, linearizable."""
    answer = call(address, "etcdserverpb.KV/Range", message(f1=KEYS, f3=1))
    return fields(answer[1]).get(3, 0)


def hash_kv(address, revision):
    """The hash over the whole history up to a revision."""
    answer = call(address, "etcdserverpb.Maintenance/HashKV", message(f1=revision), timeout=300)
    return {"hash": answer.get(2, 0), "compact_revision": answer.get(3, 0)}
