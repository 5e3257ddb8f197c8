#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small_trace.jsonl: conversations that share a system prompt, grow turn by turn and are repeated now and then, in the
format of the traces published with Mooncake. The file is kept; run this only to change it.
usage: make_small_trace.py > small_trace.jsonl"""
import json
import random

CHUNK = 512
rng = random.Random(20250601)
next_id = 0


def new_ids(count):
    global next_id
    next_id += count
    return list(range(next_id - count, next_id))


def chunks(tokens):
    return -(-tokens // CHUNK)


systems = [(ids, len(ids) * CHUNK) for ids in (new_ids(2), new_ids(4), new_ids(1))]
conversations = []
sent = []
now = 0
for _ in range(240):
    now += rng.randrange(0, 900)
    roll = rng.random()
    if roll < 0.08 and sent:
        # The same prompt again, word for word.
        length, ids = rng.choice(sent)
    elif roll < 0.55 and conversations:
        conversation = rng.choice(conversations)
        length = min(conversation["length"] + rng.choice((16, 40, 100, 130, 512, 700, 1024)), 6000)
        ids = conversation["ids"] + new_ids(max(0, chunks(length) - len(conversation["ids"])))
        conversation["ids"], conversation["length"] = ids, length
    else:
        ids, length = rng.choice(systems) if rng.random() < 0.85 else ([], 0)
        length += rng.choice((5, 33, 160, 250, 512, 900, 1500, 2300))
        ids = ids + new_ids(chunks(length) - len(ids))
        conversations.append({"ids": ids, "length": length})
    sent.append((length, ids))
    output = rng.choice((1, 2, 7, 15, 16, 17, 33, 64, 120, 200))
    print(json.dumps({"timestamp": now, "input_length": length, "output_length": output, "hash_ids": ids}))
