# SPDX-License-Identifier: Apache-2.0
"""A consumer of KV events written from docs/protocol.md alone: msgspec types and pyzmq, nothing of kvwire.

It decodes every batch strictly, loses some live messages on purpose, gets them back by replay, compares them with what
it lost, and writes the blocks it holds as sorted lines "group medium low64". Exit code 0 only if all of it went well.
"""

import argparse
import sys
import time
from collections import Counter

import msgspec
import zmq

from schema import DECODERS

END = (1 << 64) - 1


class Failure(Exception):
    pass


def require(condition, message):
    if not condition:
        raise Failure(message)


class Holder:
    """The blocks that the events say are held, with how often they were announced."""

    def __init__(self, hash_form):
        self.hash_form = hash_form
        self.held = Counter()
        self.announced = set()
        self.kinds = Counter()

    def key(self, value):
        if self.hash_form == "u64":
            require(isinstance(value, int), f"a hash is {type(value).__name__}, not an integer")
            return value
        require(isinstance(value, bytes) and len(value) == 32, "a hash is not 32 bytes")
        return int.from_bytes(value[-8:], "big")

    def apply(self, event):
        kind = type(event).__struct_config__.tag
        self.kinds[kind] += 1
        if kind == "AllBlocksCleared":
            self.held.clear()
            return
        place = (event.group_idx or 0, (event.medium or "GPU").upper())
        keys = [self.key(value) for value in event.block_hashes]
        if kind == "BlockStored":
            tokens = len(event.token_ids)
            require(tokens in (0, event.block_size * len(keys)), f"{tokens} tokens for {len(keys)} blocks")
            if event.extra_keys is not None:
                require(len(event.extra_keys) == len(keys), "extra_keys is not one per block")
            if event.parent_block_hash is not None:
                parent = self.key(event.parent_block_hash)
                require((place[0], parent) in self.announced, f"parent {parent:016x} was never announced")
            for key in keys:
                self.held[place + (key,)] += 1
                self.announced.add((place[0], key))
            return
        for key in keys:
            require(self.held[place + (key,)] > 0, f"block {key:016x} is removed and not held")
            self.held[place + (key,)] -= 1

    def lines(self):
        return [f"{group} {medium} {key:016x}" for (group, medium, key), n in sorted(self.held.items()) if n > 0]


class Subscriber:
    def __init__(self, args):
        self.args = args
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.setsockopt(zmq.RCVHWM, 0)
        self.live.setsockopt_string(zmq.SUBSCRIBE, args.topic)
        self.live.connect(args.endpoint)
        self.decoder = DECODERS[args.events]
        self.holder = Holder(args.hash_form)
        self.next = 0
        self.lost = {}
        self.replayed = 0
        self.regained = 0

    def apply(self, sequence, payload):
        require(sequence == self.next, f"message {sequence} instead of {self.next}")
        # Array of three, float64 first: some consumers take nothing else.
        require(payload[:2] == b"\x93\xcb", f"message {sequence} begins with {payload[:2].hex()}")
        try:
            batch = self.decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise Failure(f"message {sequence} cannot be decoded: {error}") from error
        for event in batch.events:
            self.holder.apply(event)
        self.next += 1

    def replay(self, until):
        dealer = self.context.socket(zmq.DEALER)
        dealer.connect(self.args.replay_endpoint)
        dealer.send_multipart([b"", self.next.to_bytes(8, "big")])
        frame_count = 4 if self.args.replay_layout == "topic" else 3
        while True:
            require(dealer.poll(10_000), "the replay was not answered to its end")
            frames = dealer.recv_multipart()
            require(len(frames) == frame_count and frames[0] == b"", f"a replay message has {len(frames)} frames")
            sequence = int.from_bytes(frames[-2], "big")
            if sequence == END:
                require(all(not frame for frame in frames[:-2]) and not frames[-1], "the end mark carries something")
                break
            if frame_count == 4:
                require(frames[1] == self.args.topic.encode(), f"a replay message has topic {frames[1]!r}")
            if sequence >= until:
                continue
            if sequence in self.lost:
                require(self.lost[sequence] == frames[-1], f"message {sequence} is replayed with other bytes")
                self.regained += 1
            self.apply(sequence, frames[-1])
            self.replayed += 1
        dealer.close(0)
        require(self.next == until, f"the replay ended before message {until}")

    def run(self):
        deadline = time.monotonic() + self.args.wait
        received = 0
        while True:
            timeout = self.args.until_idle if received else max(0.0, deadline - time.monotonic())
            if not self.live.poll(int(timeout * 1000)):
                break
            frames = self.live.recv_multipart()
            received += 1
            require(len(frames) == 3 and len(frames[1]) == 8, f"a live message has {len(frames)} frames")
            require(frames[0] == self.args.topic.encode(), f"a live message has topic {frames[0]!r}")
            sequence = int.from_bytes(frames[1], "big")
            if self.args.lose_from <= sequence < self.args.lose_from + self.args.lose:
                self.lost[sequence] = frames[2]
                continue
            if sequence > self.next:
                self.replay(sequence)
            self.apply(sequence, frames[2])
        require(received > 0, "nothing was received")
        require(self.regained == self.args.lose, f"{self.regained} of {self.args.lose} lost messages came back")

    def close(self):
        self.live.close(0)
        self.context.term()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--replay-endpoint", required=True)
    parser.add_argument("--topic", default="kv-events")
    parser.add_argument("--events", choices=sorted(DECODERS), default="map")
    parser.add_argument("--hash-form", choices=["u64", "bytes"], default="u64")
    parser.add_argument("--replay-layout", choices=["topic", "legacy"], default="topic")
    parser.add_argument("--lose-from", type=int, default=0, help="first live message to lose")
    parser.add_argument("--lose", type=int, default=0, help="how many live messages to lose")
    parser.add_argument("--wait", type=float, default=60.0)
    parser.add_argument("--until-idle", type=float, default=2.0)
    parser.add_argument("--dump-state")
    args = parser.parse_args()
    subscriber = Subscriber(args)
    try:
        subscriber.run()
    except Failure as failure:
        print(f"subscriber.py: {failure}", file=sys.stderr)
        return 1
    finally:
        subscriber.close()
    lines = subscriber.holder.lines()
    if args.dump_state:
        with open(args.dump_state, "w", encoding="utf-8") as out:
            out.writelines(line + "\n" for line in lines)
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(subscriber.holder.kinds.items()))
    print(f"messages {subscriber.next}, replayed {subscriber.replayed}, held {len(lines)}, {kinds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
