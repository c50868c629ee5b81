"""A socket of libzmq that a test drives: lines in, lines out, bytes as hexadecimal digits."""
import sys
import threading

import zmq

context = zmq.Context()
HEARTBEAT_MS = 100
# With each heartbeat that is not answered in that time libzmq connects again.
TIMEOUT_MS = 300
# Behind this nothing comes any more: the test has failed.
PATIENCE_MS = 60_000


def say(*words):
    print(*words, flush=True)


def show(parts):
    say(*(part.hex() for part in parts)) if parts[-1] else say(*(part.hex() for part in parts[:-1]), "")


def make(kind):
    made = context.socket(getattr(zmq, kind))
    made.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    made.setsockopt(zmq.HEARTBEAT_TIMEOUT, TIMEOUT_MS)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    monitor = made.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    return made, monitor


def rest(monitor):
    """Some heartbeats later: how often there was a connection."""
    threading.Event().wait(10 * TIMEOUT_MS / 1000)
    count = 0
    while monitor.poll(0):
        monitor.recv_multipart()
        count += 1
    say("connected once" if count == 1 else f"connected {count} times")


def subscribe(kind, endpoint, *topics):
    socket, monitor = make(kind)

    def change(verb, topic):
        if kind == "SUB":
            socket.setsockopt_string(zmq.SUBSCRIBE if verb == "subscribe" else zmq.UNSUBSCRIBE, topic)
        else:
            socket.send((b"\x01" if verb == "subscribe" else b"\x00") + topic.encode())

    socket.connect(endpoint)
    for topic in topics:
        change("subscribe", topic)
    for line in sys.stdin:
        verb, *rest_of = line.split()
        if verb == "poll":
            say("heard" if socket.poll(50) else "nothing")
        elif verb == "receive":
            show(socket.recv_multipart())
        elif verb == "rest":
            rest(monitor)
        else:
            change(verb, *rest_of)
            # What came before the change.
            while verb == "unsubscribe" and socket.poll(50):
                socket.recv_multipart()


def ask(kind, endpoint, first):
    socket, _ = make(kind)
    socket.connect(endpoint)
    number = int(first).to_bytes(8, "big")
    if kind == "REQ":
        socket.send(number)
        return show(socket.recv_multipart())
    socket.send_multipart([b"", number])
    while True:
        _, number, batch = socket.recv_multipart()
        show([number, batch])
        if not batch:
            return


def publish(kind):
    """A publisher as vLLM's: what it sent is kept, and sent again from a number on."""
    socket, monitor = make(kind)
    replay = context.socket(zmq.ROUTER)
    for bound in (socket, replay):
        bound.bind("tcp://127.0.0.1:*")
        say(bound.getsockopt_string(zmq.LAST_ENDPOINT))
    kept = []
    lock = threading.Lock()

    def serve():
        while True:
            frames = replay.recv_multipart()
            if len(frames) != 3:
                continue
            client, _, start = frames
            with lock:
                batches = list(kept)
            for number, batch in batches:
                if number >= int.from_bytes(start, "big"):
                    replay.send_multipart((client, b"", number.to_bytes(8, "big"), batch))
            replay.send_multipart((client, b"", (-1).to_bytes(8, "big", signed=True), b""))

    threading.Thread(target=serve, daemon=True).start()
    for line in sys.stdin:
        verb, *batch = line.split()
        if verb == "rest":
            rest(monitor)
            continue
        with lock:
            number = len(kept)
            kept.append((number, bytes.fromhex(batch[0])))
        if verb == "send":
            socket.send_multipart((b"kv@pod", number.to_bytes(8, "big"), kept[-1][1]))


{"subscribe": subscribe, "ask": ask, "publish": publish}[sys.argv[1]](*sys.argv[2:])
