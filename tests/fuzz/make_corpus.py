#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes corpus/: valid examples from tests/golden, and inputs that are wrong in a way that was once worth a test. The files are
kept; run this only to change them. Files that are there and not made here stay: finds of a fuzzer.
usage: make_corpus.py"""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
# The hello of docs/protocol.md; its digest are the last 17 bytes.
HELLO = bytes.fromhex("89a565706f6368cf0123456789abcdefb2646174615f706172616c6c656c5f72616e6b01a5666972737400a46e657874cd012ca66f6c64"
                      "65737407b56865617274626561745f696e74657276616c5f6d73cd03e8a9736e617073686f7473c3a872656d6f76616c73a56578616374"
                      "a6646967657374919400a347505502cfb1c2d3e4f5061728")
GOLDEN = HERE.parent / "golden"


def put(target, name, data):
    directory = HERE / "corpus" / target
    directory.mkdir(parents=True, exist_ok=True)
    data = data.encode() if isinstance(data, str) else bytes(data)
    known = {path.read_bytes() for path in directory.iterdir()} if target in ("decoder", "differential") else set()
    if data not in known:
        (directory / name).write_bytes(data)


def golden_lines(name):
    for line in (GOLDEN / name).read_text().splitlines():
        if line and not line.startswith("#"):
            fields = line.split()
            yield fields[0], b"" if fields[-1] == "-" else bytes.fromhex(fields[-1])


def payloads(target):
    for source in ("payloads.txt", "consumer_verdicts.txt"):
        for name, payload in golden_lines(source):
            put(target, name, payload)

    def walk(vector, name):
        if isinstance(vector, dict):
            here = vector.get("name", name)
            for key, value in vector.items():
                if key in ("block_hashes", "parent_block_hash"):
                    continue
                walk(value, here if key in ("hex", "name") else f"{here}.{key}")
        elif isinstance(vector, list):
            for item in vector:
                walk(item, name)
        elif isinstance(vector, str) and len(vector) >= 20:
            try:
                payload = bytes.fromhex(vector)
            except ValueError:
                return
            put(target, f"wire.{name}.{len(payload)}", payload)

    walk(json.loads((GOLDEN / "wire.json").read_text()), "vector")


def decoder():
    payloads("decoder")
    # Heads that declare billions: alone, as the events, as an event, as fields of one, and inside an extra key.
    around = {"alone": "", "events": "92c0", "event": "92c091", "hashes": "92c09192ac426c6f636b52656d6f766564",
              "tokens": "92c09195ab426c6f636b53746f7265649101c0",
              "extra_keys": "92c09199ab426c6f636b53746f7265649101c09002c0c0c09191", "map_events": "83a27473c0a66576656e7473",
              "tag": "92c09182a474797065"}
    for name, prefix in around.items():
        for head in ("dd", "df", "c6", "db", "c9"):
            put("decoder", f"declares.{name}.{head}", bytes.fromhex(prefix + head + "ffffffff"))
    put("decoder", "nested", bytes.fromhex("92c0") + b"\x91" * 200)
    put("decoder", "nested_keys", bytes.fromhex("92c09199ab426c6f636b53746f7265649101c09002c0c0c0") + b"\x91" * 200)
    put("decoder", "nils", bytes.fromhex("92c0dc0040") + b"\xc0" * 64)
    put("decoder", "clears", bytes.fromhex("92c0dc0008") + bytes.fromhex("91b0416c6c426c6f636b73436c6561726564") * 8)
    put("decoder", "empty", b"")


def differential():
    payloads("differential")
    stored, removed = b"\xabBlockStored", b"\xacBlockRemoved"
    event = b"\x95" + stored + bytes.fromhex("9101c0910204")
    salted = b"\x98" + stored + bytes.fromhex("9101c091020400") + b"\xc0\x81\xaacache_salt\xa1s"
    keys = b"\x99" + stored + bytes.fromhex("9101c091020400c0c0")
    for name, events in {
            "in_a_bin": [bytes([0xc4, len(event)]) + event], "in_a_bin_cut": [bytes([0xc4, len(event) - 1]) + event[:-1], event],
            "in_a_bin_more": [bytes([0xc4, len(event) + 1]) + event + b"\xc0"], "in_two_bins": [b"\xc4\x03\xc4\x01\x90"],
            "no_type_in_a_bin": [b"\xc4\x01\xc1"], "empty_bin": [b"\xc4\x00"], "deep_in_a_bin": [b"\xc4\x40" + b"\x91" * 63 + b"\xc0"],
            "salted": [salted], "key_with_nan": [keys + bytes.fromhex("91 91 cb7ff8000000000001")],
            "keys_of_all_forms": [keys + bytes.fromhex("91 97 a161 92a16101 92a161ff 92a161cfffffffffffffffff c401ff d6ff01020304 81a161ca3f800000")],
            "pairs": [b"\x95" + stored + bytes.fromhex("9101c0 92 920102 920203 04")],
            "hashes": [b"\x92" + removed + bytes.fromhex("98 01 ff d0ff d300000000000000ff cfffffffffffffffff c40101 a46162 4344 c42b") + bytes(range(43))],
            "rejected": [b"\x90", event, b"\x91\xa3abc", removed, event]}.items():
        put("differential", f"event.{name}", b"\x92\xc0" + bytes([0x90 | len(events)]) + b"".join(events))
    sizes = {"array32": ("dd0000000f", 15), "map32": ("df0000000f", 30), "bin32": ("c60000000f", 15), "str32": ("db0000000f", 15),
             "ext8": ("c70f", 16), "ext32": ("c90000000f", 16), "fixext16": ("d8", 17)}
    for name, (head, size) in sizes.items():
        for what, more in {"cut": -1, "whole": 0, "after": 1}.items():
            put("differential", f"{what}.{name}", bytes.fromhex("94c090c0") + bytes.fromhex(head) + bytes(size + more))
    put("differential", "ext32_longest", bytes.fromhex("94c090c0c9ffffffff00"))
    for depth in (29, 30, 31, 32):
        put("differential", f"nested.{depth}", bytes.fromhex("94c090c0") + b"\x91" * depth + b"\xc0")
    put("differential", "no_type", bytes.fromhex("94c090c0c1"))
    put("differential", "after", bytes.fromhex("92c090c1"))


def hello_snapshot():
    """Messages: kind (see hello_snapshot_fuzz.cc), number, length of the payload in two bytes, payload."""
    hello, digest, chunk, end, unknown, batch, mark, legacy_mark, few = range(9)
    golden = dict(golden_lines("payloads.txt"))
    entries, state = HELLO[-17:], golden["captured"]
    store = bytes.fromhex("93c091") + b"\x95\xabBlockStored" + bytes.fromhex("9101c091020400")
    clear_store = bytes.fromhex("93c092") + b"\x91\xb0AllBlocksCleared" + store[3:]
    answers = {
        "hello": [(hello, 44, HELLO), (mark, 0, b"")], "hello_only": [(hello, 44, HELLO)], "no_hello": [(mark, 0, b"")],
        "legacy_no_hello": [(legacy_mark, 0, b"")], "hello_without_digest": [(hello, 44, HELLO.replace(entries, b"\xc0"))],
        "hello_unknown_key": [(hello, 44, b"\x8a\xa3key\x91\x81\xa1a\xc0" + HELLO[1:])],
        "hello_twice_epoch": [(hello, 44, HELLO.replace(b"\xa5first\x00", b"\xa5epoch\x00"))],
        "digest": [(digest, 3, entries), (mark, 0, b"")], "digest_empty": [(digest, 3, b"\x90")],
        "digest_many": [(digest, 3, b"\xdc\x00\x14" + b"".join(b"\x94" + bytes([group]) + b"\xa3GPU\x01\x01" for group in range(20)))],
        "digest_order": [(digest, 3, b"\x92" + entries[1:] + entries[1:])], "digest_1025": [(digest, 3, b"\xdc\x04\x01" + bytes(1025))],
        "snapshot": [(chunk, 5, store), (chunk, 5, store), (chunk, 7, store), (end, 8, entries), (mark, 0, b"")],
        "snapshot_no_digest": [(chunk, 5, store), (end, 8, b"")], "snapshot_empty": [(end, 0, b"\x90")],
        "snapshot_refused": [(mark, 0, b"")], "snapshot_broken_off": [(chunk, 5, store), (mark, 0, b"")],
        "snapshot_back": [(chunk, 5, store), (chunk, 4, store)], "snapshot_end_back": [(chunk, 5, store), (end, 4, b"\x90")],
        "snapshot_clear": [(chunk, 5, clear_store), (end, 6, b"")], "snapshot_removes": [(chunk, 5, state), (end, 6, b"")],
        "snapshot_unreadable": [(chunk, 5, state[:-3]), (end, 6, b"")], "snapshot_last": [(chunk, 255, store), (end, 255, b"")],
        "state": [(batch, 9, store), (mark, 0, b"")], "state_legacy": [(batch, 9, clear_store), (legacy_mark, 0, b"")],
        "state_empty": [(batch, 0, bytes.fromhex("93c09000")), (mark, 0, b"")], "state_twice": [(batch, 9, store), (batch, 9, store)],
        "state_unended": [(batch, 9, store)], "state_last": [(batch, 255, store), (mark, 0, b"")],
        "unknown": [(unknown, 1, HELLO)], "few_frames": [(few, 0, b"x")], "chunk_asked_hello": [(chunk, 1, HELLO), (hello, 1, store)],
    }
    for name, head in {"array32": "dd", "map32": "df", "bin32": "c6", "str32": "db"}.items():
        answers[f"declares.{name}"] = [(kind, 1, bytes.fromhex(head + "ffffffff")) for kind in (hello, digest, chunk, end)]
        answers[f"hello_declares.{name}"] = [(hello, 1, HELLO[:-17] + bytes.fromhex(head + "ffffffff"))]
    for name, messages in answers.items():
        put("hello_snapshot", name, b"".join(struct.pack(">BBH", kind, number, len(payload)) + payload
                                             for kind, number, payload in messages))


def replay_request():
    """Frames: each a byte with the length, then its bytes."""
    number = struct.pack(">Q", 5)
    messages = {
        "request": [b"", number], "from_0": [b"", bytes(8)], "from_the_end": [b"", b"\xff" * 8], "no_bytes": [b"", b""],
        "one_byte": [b"", b"\x05"], "seven_bytes": [b"", number[1:]], "nine_bytes": [b"", b"\x00" + number],
        "nine_bytes_huge": [b"", b"\x01" + bytes(8)], "probe": [b"", b"KVW1hello"], "sixteen_bytes": [b"", bytes(16)],
        "seventeen_bytes": [b"", bytes(17)], "no_delimiter": [number], "no_delimiter_no_bytes": [b""],
        "delimiter_not_empty": [b"x", b"\x00"], "four_frames": [b"", b"\x00", b"\x00"], "many_frames": [b""] * 16,
        "long_frame": [b"", b"\xaa" * 200],
        "digest": [b"", b"KVW1digest" + number], "digest_short": [b"", b"KVW1digest"], "snapshot": [b"", b"KVW1snapshot"],
        "unknown_name": [b"", b"KVW1something"],
        # Answers, which no client should send.
        "hello_answer": [b"", b"KVW1hello", number, HELLO], "digest_answer": [b"", b"KVW1digest", number, HELLO[-17:]],
        "answer": [b"", b"test", number, b"\x93\x01\x90\x00"], "legacy_answer": [b"", number, b"\x93\x01\x90\x00"],
        "end": [b"", b"", b"\xff" * 8, b""], "live": [b"test", number, b"\x93\x01\x90\x00"],
    }
    for name, frames in messages.items():
        put("replay_request", name, b"".join(bytes([len(frame)]) + frame for frame in frames))


def config():
    profiles = ("vllm", "vllm-0.22", "llm-d", "dynamo", "aibrix", "kthena", "xllm", "sglang", "trtllm", "sgl")
    texts = {f"profile_{name}": json.dumps({"kvwire": {"profile": name}}) for name in profiles}
    texts.update({
        "empty": "", "none": "None", "object": "{}", "array": "[]", "null": "null",
        "everything": json.dumps({
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558",
            "buffer_steps": 10000, "hwm": 100000, "max_queue_size": 100000, "topic": "kv@pod@model",
            "kvwire": {"profile": "vllm", "event_format": "array", "array_tail": "legacy", "hash_form": "i64",
                       "wide_hashes": "always", "replay_layout": "legacy", "first_seq": 1, "mode": "bind",
                       "medium_names": {"GPU": "gpu", "CPU": "cpu", "STORAGE": "disk"}, "removals": "per_copy",
                       "overflow": "drop", "queue_bytes": 1, "buffer_bytes": 1,
                       "heartbeat_interval_ms": 10, "restart_guard_s": 0, "snapshot": "off"}}),
        "suffixes": '{"buffer_steps":10k,"hwm":1K,"max_queue_size":2m,"kvwire":{"queue_bytes":64M,"buffer_bytes":1.5g}}',
        "suffix_fraction": '{"hwm": 1.0005k}', "suffix_binary_fraction": '{"hwm": 1.5K}', "suffix_overflow": '{"hwm": 8388608T}',
        "suffix_huge": '{"hwm": 9999999999t}', "suffix_negative": '{"hwm": -1k}', "suffix_in_text": '{"topic": "a \\"10k\\" b", "hwm": 1k}',
        "backslash": '{"topic": "\\\\", "hwm": 1k}', "range": '{"buffer_steps": 9223372036854775808}', "negative": '{"hwm": -1}',
        "zero": '{"max_queue_size": 0}', "fraction": '{"buffer_steps": 1.5}', "exponent": '{"buffer_steps": 1e3}',
        "twice": '{"topic": "a", "topic": "a"}', "twice_inside": '{"kvwire": {"mode": "bind", "mode": "bind"}}',
        "unknown": '{"Topic": "x"}', "unknown_inside": '{"kvwire": {"hash_from": "u64"}}', "no_name": '{"": 1}',
        "later": '{"kvwire": {"curve": 1}}', "resync": '{"kvwire": {"overflow": "resync"}}', "heartbeat_low": '{"kvwire": {"heartbeat_interval_ms": 1}}',
        "not_text": '{"endpoint": 5557}', "not_object": '{"kvwire": 1}', "no_end": '{"topic": "x', "after": '{} {}', "comment": '{/* */}',
        "bad_escape": '{"topic": "\\x"}', "surrogate": '{"topic": "\\ud800"}', "nul": '{"topic": "\\u0000"}',
        "bad_utf8": b'{"topic": "\xff\xfe"}', "utf8": '{"topic": "\u00e9\u4e16\U0001f600"}', "raw_line_break": '{"topic": "a\nb"}',
        "deep": '{"topic": ' + "[" * 200 + "]" * 200 + "}", "nan": '{"hwm": NaN}', "long_key": '{"' + "k" * 300 + '": 1}',
        "dotted": "topic=x", "dotted_inside": "kvwire.mode=bind", "dotted_deep": "kvwire.medium_names.GPU=gpu",
        "dotted_json": 'kvwire={"first_seq": 1, "queue_bytes": 2K}', "dotted_list": "topic+=x", "dotted_no_object": "topic.x=1",
        "dotted_empty": "=1", "dotted_dots": "..=1", "environment_0": "0", "environment_plus": "+0", "environment_huge": "9" * 40,
    })
    for name, text in texts.items():
        put("config", name, text)


def endpoint():
    single = ("tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://127.0.0.1:0", "tcp://[::1]:5557", "tcp://[fe80::1%eth0]:65535", "tcp://host:1",
              "tcp://*:*", "tcp://:::5557", "ipc:///tmp/x", "ipc://@abstract", "ipc://*", "inproc://a", "", "udp://*:1", "TCP://*:5557",
              "tcp:/*:5557", "*:5557", "tcp://", "tcp://host", "tcp://[::1]", "tcp://host:", "tcp://:5557", "tcp://*:abc", "tcp://*:-1",
              "tcp://*:+1", "tcp://*:55 57", "tcp://*:5557_dp1", "tcp://*:70000", "tcp://*:99999999999999999999", "tcp://::1:5557",
              "tcp://[::1:5557", "tcp://[]:5557", "tcp://a b:5557", "tcp://a/b:5557", "ipc://", "inproc://", "ipc://" + "x" * 104,
              "ipc://" + "x" * 108, "inproc://" + "x" * 260, "ipc:///tmp/a\0b", "tcp://*:65535")
    pairs = (("tcp://*:5557", "tcp://*:5558"), ("tcp://*:5557", "tcp://*:5565"), ("tcp://*:5557", "tcp://0.0.0.0:5558"),
             ("tcp://*:0", "tcp://*:0"), ("inproc://a", "inproc://a_dp1"), ("ipc:///tmp/a", "inproc:///tmp/a"), ("ipc://*", "ipc://*"),
             ("inproc://a_dp1", "inproc://a"), ("tcp://10.0.0.7:5557", "tcp://*:5558"))
    for number, text in enumerate(single):
        put("endpoint", f"single_{number:02}", text)
    for number, texts in enumerate(pairs):
        put("endpoint", f"pair_{number:02}", "\n".join(texts))


def recording():
    def message(nanos, sequence, topic, payload):
        return struct.pack(">QQII", nanos, sequence, len(topic), len(payload)) + topic + payload

    header = b"KVWIREC\n" + struct.pack(">I", 1)
    payloads = dict(golden_lines("payloads.txt"))
    first = message(1_700_000_000_123_456_789, 0, b"kv-events", payloads["captured"])
    whole = header + first + message(1_700_000_001_000_000_000, 1, b"", b"") + message(1_700_000_002_000_000_000, 7, b"a\0b", bytes(100))
    for name, data in {
            "whole": whole, "no_messages": header, "empty": b"", "cut_in_header": header[:10], "cut_in_message": whole[:-40],
            "cut_in_message_header": (header + first)[:30], "other_magic": b"KVWIREX\n" + header[8:],
            "other_version": header[:8] + struct.pack(">I", 2) + first, "long_topic": header + struct.pack(">QQII", 1, 2, 65537, 0),
            "long_payload": header + first + struct.pack(">QQII", 1, 2, 0, (64 << 20) + 1),
            "longest_topic": header + struct.pack(">QQII", 1, 2, 65536, 0) + b"x",
            "largest": header + struct.pack(">QQII", 1, 2, 0xffffffff, 0xffffffff),
            "last_number": header + message(2**64 - 1, 2**64 - 1, b"t", b"\x93"), "payload_only": payloads["captured"]}.items():
        put("recording", name, data)


if __name__ == "__main__":
    for make in (decoder, differential, hello_snapshot, replay_request, config, endpoint, recording):
        make()
