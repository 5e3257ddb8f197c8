#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes pickle_blocks.json: what Python's pickler makes of blocks and seed texts at the edges of its encoding: widths of integers,
long strings, and frames, which end at 64 KiB. The file is kept; run this only to change it.
usage: make_pickle_blocks.py > pickle_blocks.json

A long text is {"repeat": text, "count": n}, bytes are {"bytes": hex, "count": n}. Token ids are a list, or
{"count": n, "factor": f, "modulus": m}: token i is i * f % m.
A preimage above SMALL bytes is represented by its size, its frames (place, length) and its SHA-256."""
import hashlib
import json
import pickle
import pickletools

SMALL = 1000
FRAME = 1 << 16


def text_of(value):
    # A string object of its own at every call: the pickler refers back to an object it has written.
    if isinstance(value, dict):
        return value["repeat"] * value["count"]
    return value.encode().decode()


def key_of(value):
    if isinstance(value, list):
        return (text_of(value[0]), value[1])
    if isinstance(value, dict) and "bytes" in value:
        return bytes.fromhex(value["bytes"]) * value["count"]
    return text_of(value)


def tokens_of(value):
    if isinstance(value, dict):
        return tuple(i * value["factor"] % value["modulus"] for i in range(value["count"]))
    return tuple(value)


def frames_of(data):
    return [[at, argument] for opcode, argument, at in pickletools.genops(data) if opcode.name == "FRAME"]


def described(name, data):
    case = {"name": name, "size": len(data), "frames": frames_of(data), "digest": hashlib.sha256(data).hexdigest()}
    if len(data) <= SMALL:
        case["preimage"] = data.hex()
    return case


def block(name, tokens, extra_keys=None, parent=bytes(range(32))):
    value = (parent, tokens_of(tokens), None if extra_keys is None else tuple(key_of(k) for k in extra_keys))
    case = described(name, pickle.dumps(value, protocol=5))
    return {**case, "parent": parent.hex(), "token_ids": tokens, "extra_keys": extra_keys}


def root(name, seed):
    return {**described(name, pickle.dumps(text_of(seed), protocol=5)), "seed": seed}


def repeat(text, count):
    return {"repeat": text, "count": count}


def raw(hexadecimal, count):
    return {"bytes": hexadecimal, "count": count}


def many(count, factor=7919, modulus=151936):
    return {"count": count, "factor": factor, "modulus": modulus}


blocks = [
    block("no tokens", []),
    block("one token", [7]),
    block("two tokens", [7, 8]),
    block("three tokens", [7, 8, 9]),
    block("four tokens", [7, 8, 9, 10]),
    block("widths of tokens", [0, 255, 256, 65535, 65536, 2**31 - 1]),
    block("tokens beyond an int32", [2**31, 2**32 - 1]),
    block("a parent of 16 bytes", [1], parent=bytes(range(16))),
    block("a parent of one byte", [1], parent=b"\x07"),
    block("one key", [1], ["lora"]),
    block("two keys", [1], ["lora", "salt"]),
    block("three keys", [1], ["lora", ["image", 0], "salt"]),
    block("five keys", [1], ["lora", ["a1", 0], ["a2", 1], ["a3", 2], "salt"]),
    block("a string of 255 bytes", [1], [repeat("x", 255)]),
    block("a string of 256 bytes", [1], [repeat("x", 256)]),
    block("a string of 256 bytes in two-byte letters", [1], [repeat("\u00e4", 128)]),
    block("an empty identifier", [1], [["", 3]]),
    block("equal strings that are different objects", [1], ["image", ["image", 0], ["image", 2], "image"]),
    block("bytes", [1], [raw("ab", 0), raw("abcd", 1), raw("cd", 32)]),
    block("bytes of 255", [1], [raw("ab", 255)]),
    block("bytes of 256", [1], [raw("ab", 256)]),
]
for offset in (-1, -255, -256, -65535, -(2**31), -(2**31) - 1, -(2**32) + 1, 255, 256, 65536, 2**31 - 1, 2**31, 2**32 - 1,
               2**39 - 1, 2**39, -(2**39), -(2**39) - 1, 2**63 - 1, -(2**63)):
    blocks.append(block(f"offset {offset}", [1], [["image", offset]]))
blocks += [
    block("40,000 tokens", many(40000)),
    block("40,000 tokens beyond an int32", many(40000, 2**31 - 1, 2**32)),
    block("200,000 small tokens", many(200000, 1, 251)),
]
# In front of the tokens the first frame holds the parent, with its opcode, length and memo, and the mark.
head = 32 + 3 + 1
for short in range(-3, 4):
    full = (FRAME - head) // 2 + short
    blocks.append(block(f"a first frame full at {full} tokens of two bytes", many(full, 1, 251), ["salt"]))
for short in range(-8, 2):
    size = FRAME + short
    blocks.append(block(f"a key of {size} bytes", [1, 2], [repeat("k", size)]))
    blocks.append(block(f"a key of {size} bytes between others", [1, 2], ["lora", [repeat("k", size), -5], "salt"]))
blocks += [
    block("two keys above a frame", [1], [repeat("a", FRAME), repeat("b", FRAME + 9)]),
    block("bytes above a frame", [1], [raw("ab", FRAME), "salt"]),
    block("two keys that fill a frame together", [1], [repeat("a", 40000), repeat("b", 40000), repeat("c", 40000), "salt"]),
]
roots = [
    root("empty", ""),
    root("one letter", "0"),
    root("the fixed seed", "vllm-none-hash"),
    root("255 bytes", repeat("s", 255)),
    root("256 bytes", repeat("s", 256)),
    root("two-byte letters", repeat("\u00e4", 128)),
    root("just below a frame", repeat("s", FRAME - 1)),
    root("a frame", repeat("s", FRAME)),
    root("above a frame", repeat("s", 3 * FRAME + 1)),
]
print("{\n\"blocks\": [\n" + ",\n".join(json.dumps(b) for b in blocks))
print("],\n\"roots\": [\n" + ",\n".join(json.dumps(r) for r in roots) + "\n]\n}")
