# SPDX-License-Identifier: Apache-2.0
"""A publisher that behaves as vLLM's does, flaws included: msgspec and pyzmq, nothing of kvwire.

Numbers are drawn after a batch left the queue and before it is encoded; one replay request is served per turn of the
loop; the ROUTER drops what its pipe does not take, the end mark too; there is no epoch, no heartbeat, no snapshot; a
new process begins with number 0 and an empty cache. The engine's events of an idle reset wait for the next step.
"""

import queue
import threading
import time
from collections import Counter, deque
from typing import Any, Optional, Union

import msgspec
import zmq

END = b"\xff" * 8
U64 = 2**64 - 1


class Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(Event, tag="BlockStored"):
    block_hashes: list[Union[int, bytes]]
    parent_block_hash: Optional[Union[int, bytes]]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Optional[list[Any]] = None
    group_idx: Optional[int] = None
    kv_cache_spec_kind: Optional[str] = None


class BlockRemoved(Event, tag="BlockRemoved"):
    block_hashes: list[Union[int, bytes]]
    medium: Optional[str]
    group_idx: Optional[int] = None


class AllBlocksCleared(Event, tag="AllBlocksCleared"):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: Optional[int] = None


def mixed(low64):
    """The digest's mixing function, see docs/protocol.md."""
    x = (low64 + 0x9E3779B97F4A7C15) & U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & U64
    return x ^ (x >> 31)


class Held:
    """What the events say is held, and its digest as `kvwire tap --dump-digests` writes it."""

    def __init__(self):
        self.blocks = Counter()

    def apply(self, events):
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockStored):
                self.blocks.update(event.block_hashes)
            else:
                self.blocks.subtract(event.block_hashes)

    def held(self):
        return [block for block, count in self.blocks.items() if count > 0]

    def digest(self):
        held = self.held()
        if not held:
            return "empty"
        return f"0/GPU {len(held)}:{sum(map(mixed, held)) & U64:016x}"

    def lines(self):
        return "".join(f"0 GPU {block:016x}\n" for block in sorted(self.held()))


class Publisher:
    """`lose(number)`: whether a live message is lost on its way; `fail(number)`: whether the batch cannot be encoded."""

    def __init__(self, endpoint, replay_endpoint, buffer_steps=10_000, router_hwm=None):
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.pub.set_hwm(100_000)
        self.pub.bind(endpoint)
        self.router = self.context.socket(zmq.ROUTER)
        if router_hwm is not None:
            self.router.set_hwm(router_hwm)
        self.router.bind(replay_endpoint)
        self.ring = deque(maxlen=buffer_steps)
        self.queue = queue.Queue(100_000)
        self.next = 0
        self.lose = lambda number: False
        self.fail = lambda number: False
        self.answer_delay = 0.0
        self.running = True
        self.encoder = msgspec.msgpack.Encoder()
        self.held = Held()
        self.digests = {}  # of what was sent or is in the ring, by number
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def publish(self, events):
        self.queue.put(Batch(ts=time.time(), events=events, data_parallel_rank=0))

    def run(self):
        while self.running or not self.queue.empty():
            if self.router.poll(0):
                self.serve()
            try:
                batch = self.queue.get(timeout=0.1)
            except queue.Empty:
                continue
            if batch is None:
                break
            number = self.next
            self.next += 1
            self.held.apply(batch.events)
            self.digests[number] = self.held.digest()
            if not self.fail(number):
                payload = self.encoder.encode(batch)
                if not self.lose(number):
                    self.pub.send_multipart([b"", number.to_bytes(8, "big"), payload])
                self.ring.append((number, payload))
            self.queue.task_done()

    def serve(self):
        frames = self.router.recv_multipart()
        if len(frames) != 3:
            return
        identity, _, start = frames
        time.sleep(self.answer_delay)
        first = int.from_bytes(start, "big")
        for number, payload in self.ring:
            if number >= first:
                self.router.send_multipart([identity, b"", b"", number.to_bytes(8, "big"), payload])
        self.router.send_multipart([identity, b"", b"", END, b""])

    def settle(self):
        self.queue.join()

    def die(self):
        """As a killed process: what is queued is lost, connections end."""
        self.running = False
        self.queue.put(None)
        self.thread.join()
        self.pub.close(0)
        self.router.close(0)
        self.context.term()


class Engine:
    """Makes blocks; what a reset outside a step records waits for the next one, as in vLLM."""

    def __init__(self, publisher, first_block=1):
        self.publisher = publisher
        self.next_block = first_block
        self.held = deque()
        self.waiting = []

    def step(self):
        block = self.next_block
        self.next_block += 1
        events, self.waiting = self.waiting, []
        if len(self.held) >= 20:
            events.append(BlockRemoved([self.held.popleft()], "GPU", 0))
        self.held.append(block)
        events.append(BlockStored([block], None, [block % 1000, 2, 3, 4], 4, None, "GPU", None, [None], 0, "full_attention"))
        self.publisher.publish(events)

    def steps(self, count):
        for _ in range(count):
            self.step()
        self.publisher.settle()

    def reset(self):
        self.held.clear()
        self.waiting.append(AllBlocksCleared())
