#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvwire tap --against` at `kvwire serve --dev`, as processes: what the stream says is what the engine holds, and when it
is not, the tap says so.

Usage: against_process_test.py KVWIRE. Every port is 0 and read back."""
import http.server
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serve_process_test import EVENTS, KVWIRE, PROMPT, WATCHDOG, Server  # takes KVWIRE from the command line

CLEAN, VIOLATED, INCOMPLETE = 0, 1, 2


# A loss stays one, and a life begins once.
PLAIN = {**EVENTS, "kvwire": {**EVENTS["kvwire"], "overflow": "drop", "snapshot": "off", "restart_guard_s": 0}}


class DevServer(Server):
    """A server with --dev."""

    def __init__(self, *arguments, **options):
        super().__init__("--port", "0", "--dev", *arguments, **options)

    def get(self, path):
        status, body = self.ask("GET", path)
        assert status == 200, body
        return json.loads(body)

    def wait_until_sent(self):
        """Until every batch was handed to the transport, and so has met its faults."""
        end = time.monotonic() + WATCHDOG
        while "\nkvwire_publisher_queued{" not in (text := self.ask("GET", "/metrics")[1]) or not re.search(
                r"\nkvwire_publisher_queued\{[^}]*\} 0\n", text):
            assert time.monotonic() < end, "batches stay queued"

    def state(self, rank=0):
        return self.get(f"/kv/state?rank={rank}")

    def next_batch(self):
        return self.get("/dev/pool")["next_batch"]

    def break_it(self, fault):
        status, body = self.ask("POST", "/dev/faults", fault)
        assert status == 200, body

    def complete_at(self, rank, prompt):
        status, body = self.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 4},
                                {"X-data-parallel-rank": str(rank)})
        assert status == 200, body


class CountingProxy(http.server.ThreadingHTTPServer):
    """Stands between a tap and its engine, and knows how often the tap has asked."""

    def __init__(self, server):
        proxy = self
        self.asked = 0
        self.changed = threading.Condition()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                with proxy.changed:
                    proxy.asked += 1
                    proxy.changed.notify_all()
                status, body = server.ask("GET", self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def wait_for_comparison(self):
        """Until a question that is asked from now on was answered, and its answer taken."""
        with self.changed:
            before = self.asked
            assert self.changed.wait_for(lambda: self.asked >= before + 3, WATCHDOG)

    def __exit__(self, *arguments):
        self.shutdown()
        self.thread.join()
        super().__exit__(*arguments)


class Tap:
    """A running tap; killed at the end if it still runs. Its lines of JSON are read as they come."""

    def __init__(self, server, *arguments, rank=0, against_rank=None, port=None):
        _, endpoint, replay, _ = server.sources[rank]
        self.process = subprocess.Popen(
            [KVWIRE, "tap", "--endpoint", endpoint, "--replay-endpoint", replay, "--removals", "exact", "--json", "--against",
             f"http://127.0.0.1:{port or server.port}", "--against-rank", str(rank if against_rank is None else against_rank),
             *arguments], stdout=subprocess.PIPE, text=True)
        self.lines = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.wait_for("connecting")

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(json.loads(line))
                self.changed.notify_all()

    def wait_for(self, *keys, value=None):
        """Until a line has one of the keys, with this value if one is given."""
        def is_there():
            return any(key in line and value in (None, line[key]) for line in self.lines for key in keys)

        with self.changed:
            assert self.changed.wait_for(is_there, WATCHDOG), (keys, value, self.lines)

    def wait_for_all(self, state):
        """Until the message has come that this state of the engine is of."""
        self.wait_for("seq", value=state["batch"])

    def of(self, key):
        return [line[key] for line in self.lines if key in line]

    def end(self):
        """The exit code and the summary."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(WATCHDOG)
        self.reader.join(WATCHDOG)
        return code, self.of("summary")[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.process.stdout.close()


def without_times(recording):
    """The messages of a recording: number, topic, payload with the bytes of its timestamp masked."""
    messages = []
    assert recording[:12] == b"KVWIREC\n\0\0\0\1", recording[:12]
    at = 12
    while at < len(recording):
        _, number, topic_size, payload_size = struct.unpack_from(">QQII", recording, at)
        at += 24
        topic = recording[at:at + topic_size]
        payload = recording[at + topic_size:at + topic_size + payload_size]
        at += topic_size + payload_size
        # An array of three, whose first is a 64-bit float.
        assert payload[:2] == b"\x93\xcb", payload[:2]
        messages.append((number, topic, payload[:2] + bytes(8) + payload[10:]))
    return messages


class AgainstTest(unittest.TestCase):
    def assert_agreed(self, code, summary, state):
        self.assertEqual((code, summary["verdict"]), (CLEAN, "clean"), summary)
        self.assertGreater(summary["against"]["agreed"], 0)
        self.assertEqual(summary["against"]["disagreed"], 0)
        self.assertEqual(summary["digest"], state["digest"])

    def test_agreement(self):
        """while requests run and blocks are evicted, every rank's stream says what the rank holds"""
        with DevServer("-dp", "2", "--num-blocks", "60") as server, Tap(server) as first, Tap(server, rank=1) as second:
            clients = [threading.Thread(target=lambda i=i: [server.complete_at(n % 2, f"{i} {n} " + PROMPT) for n in range(20)])
                       for i in range(3)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            for rank, tap in enumerate((first, second)):
                state = server.state(rank)
                self.assertGreater(state["num_blocks"], 0)
                tap.wait_for_all(state)
                code, summary = tap.end()
                self.assertGreater(summary["blocks_removed"], 0)
                self.assert_agreed(code, summary, state)

    def test_faults_of_the_wire(self):
        """what the wire loses and repeats is healed: the stream says what the engine holds"""
        faults = {"faults": [{"kind": "drop", "every": 3}, {"kind": "duplicate", "every": 2}, {"kind": "delay", "at": 4, "ms": 20}]}
        with DevServer("--num-blocks", "30", "--faults", json.dumps(faults)) as server, Tap(server) as tap:
            for n in range(11):
                server.complete(f"{n} " + PROMPT)
            while server.state()["batch"] % 3 == 0:  # the last one is seen without a question
                server.complete(f"{server.next_batch()} more " + PROMPT)
            state = server.state()
            tap.wait_for_all(state)
            self.assert_agreed(*tap.end(), state)
            happened = server.get("/dev/faults")["happened"]
            self.assertGreater(happened["drop"], 0)
            self.assertGreater(happened["duplicate"], 0)
            self.assertEqual(happened["delay"], 1)

    def assert_hits_add_up(self, server):
        metrics = server.ask("GET", "/metrics")[1]

        def figure(name, medium=""):
            label = f',medium="{medium}"' if medium else ""
            return float(re.search(rf'\n{name}\{{engine="0",model_name="[^"]*"{label}\}} (\S+)\n', metrics).group(1))
        hits = {medium: figure("kvwire_prompt_tokens_hit_total", medium) for medium in ("GPU", "CPU", "DISK")}
        self.assertEqual(sum(hits.values()) + figure("kvwire_prompt_tokens_computed_total"), figure("vllm:prompt_tokens_total"))
        return hits, figure

    def test_lower_tiers(self):
        """H1: with a host and a disk tier, evictions and resets, the stream says what every tier holds"""
        for policy in ("clear", "keep"):
            with self.subTest(policy), tempfile.TemporaryDirectory() as folder, DevServer(
                    "--num-blocks", "30", "--host-blocks", "40", "--disk-blocks", "60", "--disk-dir", f"{folder}/blocks", "-tp", "2",
                    "--reset-lower-tiers", policy) as server, Tap(server) as tap:
                prompts = [f"{n} " + PROMPT for n in range(30)]
                for prompt in prompts:
                    server.complete(prompt)
                self.assertGreater(len(os.listdir(f"{folder}/blocks/rank-0")), 100)
                cached = [server.complete(prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]
                          for prompt in reversed(prompts)]
                self.assertGreater(sum(cached), 0)
                # Of one prompt at a time whatever is found is in the answer.
                hits, figure = self.assert_hits_add_up(server)
                self.assertEqual(sum(cached), sum(hits.values()))
                self.assertGreater(hits["CPU"] + hits["DISK"], 0)
                for medium in ("CPU", "DISK"):
                    self.assertGreater(figure("kvwire_tier_blocks_stored_total", medium), 0)
                    self.assertGreater(figure("kvwire_tier_blocks_removed_total", medium), 0)
                    self.assertGreater(figure("kvwire_tier_blocks_resident", medium), 0)
                    self.assertEqual(figure("kvwire_tier_stores_failed_total", medium), 0)
                server.break_it({"now": {"kind": "reset"}})
                lines = server.state()["blocks"]
                self.assertEqual({line.split()[1] for line in lines}, {"CPU", "DISK"} if policy == "keep" else set())
                for prompt in prompts[:20]:
                    server.complete(prompt)
                state = server.state()
                self.assertEqual({line.split()[1] for line in state["blocks"]}, {"GPU", "CPU", "DISK"})
                self.assertEqual(state["num_blocks"], len(state["blocks"]))
                tap.wait_for_all(state)
                code, summary = tap.end()
                self.assertGreater(summary["blocks_removed"], 0)
                self.assert_agreed(code, summary, state)
                self.assertEqual(server.end()[0], 0)
                self.assertEqual(os.listdir(f"{folder}/blocks/rank-0"), [])

    def test_disk_under_way(self):
        """D11: files that are spoilt or gone are computed again; the stream takes back what could not be loaded"""
        with tempfile.TemporaryDirectory() as folder, DevServer("--num-blocks", "30", "--disk-blocks", "200", "--disk-dir",
                                                                folder) as server, Tap(server) as tap:
            prompts = [f"{n} " + PROMPT for n in range(20)]
            texts = [server.complete(prompt)["choices"][0]["text"] for prompt in prompts]
            rank = f"{folder}/rank-0"
            files = sorted(name for name in os.listdir(rank) if name.startswith("block-"))
            for index, name in enumerate(files):
                if index % 3 == 0:
                    os.unlink(f"{rank}/{name}")
                elif index % 3 == 1:
                    os.truncate(f"{rank}/{name}", 50)
            self.assertEqual([server.complete(prompt)["choices"][0]["text"] for prompt in prompts], texts)
            hits, _ = self.assert_hits_add_up(server)
            self.assertGreater(hits["DISK"], 0)
            self.assertRegex(server.ask("GET", "/metrics")[1], r"\nkvwire_loads_failed_total\{[^}]*\} [1-9]")
            shutil.rmtree(rank)
            self.assertEqual([server.complete(prompt)["choices"][0]["text"] for prompt in prompts], texts)
            self.assertRegex(server.ask("GET", "/metrics")[1], r'\nkvwire_tier_stores_failed_total\{[^}]*medium="DISK"[^}]*\} [1-9]')
            state = server.state()
            tap.wait_for_all(state)
            self.assert_agreed(*tap.end(), state)
            code, log = server.end()
            self.assertEqual(code, 0)
            self.assertIn("cannot be read: ", log)
            self.assertIn("cannot be written: No such file or directory", log)

    def test_restart_with_a_disk(self):
        """an engine that is replaced has the directory of the one before it, and none of its blocks"""
        with tempfile.TemporaryDirectory() as folder, DevServer("--num-blocks", "30", "--disk-blocks", "50", "--disk-dir", folder,
                                                                "-dp", "2") as server:
            for n in range(20):
                server.complete_at(0, f"{n} " + PROMPT)
            self.assertGreater(len(os.listdir(f"{folder}/rank-0")), 1)
            server.break_it({"now": {"kind": "restart"}, "rank": 0})
            self.assertEqual(os.listdir(f"{folder}/rank-0"), ["kvwire.lock"])
            for n in range(20):
                server.complete_at(0, f"{n} " + PROMPT)
            self.assertGreater(len(os.listdir(f"{folder}/rank-0")), 1)
            self.assertEqual(os.listdir(f"{folder}/rank-1"), ["kvwire.lock"])

    def test_another_engine(self):
        """a stream that is another engine's violates the rule of agreement"""
        with DevServer("-dp", "2", events=PLAIN) as server, Tap(server, against_rank=1) as tap:
            server.complete_at(0, PROMPT)
            server.complete_at(1, "not " + PROMPT)
            tap.wait_for("violation")
            code, summary = tap.end()
            self.assertEqual((code, summary["verdict"]), (VIOLATED, "violated"))
            self.assertEqual(tap.of("violation")[0]["rule"], "agreement")

    def test_no_dev(self):
        """an engine that was started without --dev is never compared: incomplete, and the tap says why"""
        with Server("--port", "0") as server, Tap(server) as tap:
            server.complete()
            tap.wait_for("seq")
            code, summary = tap.end()
            self.assertEqual((code, summary["verdict"]), (INCOMPLETE, "incomplete"))
            self.assertIn("404", summary["incomplete"])

    def test_late_join(self):
        """C9: what came live before the snapshot of a late join is a part of the state, and not held against the engine"""
        short = {**EVENTS, "buffer_steps": 2, "kvwire": {**EVENTS["kvwire"], "restart_guard_s": 0}}
        with DevServer("--num-blocks", "400", events=short) as server:
            for n in range(8):
                server.complete(f"{n} before anybody listened " + PROMPT)
            going = threading.Event()
            def load():
                n = 0
                while not going.is_set():
                    server.complete(f"{n} meanwhile " + PROMPT)
                    n += 1
            client = threading.Thread(target=load)
            client.start()
            try:
                for _ in range(3):
                    with Tap(server) as tap:
                        tap.wait_for("snapshot")
                        tap.wait_for_all(server.state())
                        code, summary = tap.end()
                        self.assertEqual(summary["against"]["disagreed"], 0, tap.lines)
                        self.assertEqual((code, summary["verdict"]), (CLEAN, "clean"), summary)
            finally:
                going.set()
                client.join()

    def test_overflow(self):
        """a burnt number is a gap, and then the engine holds what the stream never said"""
        with DevServer(events=PLAIN) as server, Tap(server) as tap:
            server.complete()
            burnt = server.next_batch()
            server.break_it({"faults": [{"kind": "overflow", "at": burnt}]})
            before = set(server.state()["blocks"])
            server.complete("x" * 70)
            lost = sorted(set(server.state()["blocks"]) - before)
            server.complete("y" * 70)
            tap.wait_for_all(server.state())
            self.wait_for_explanation(tap)
            code, summary = tap.end()
            self.assertEqual((code, summary["verdict"]), (VIOLATED, "violated"))
            self.assertEqual((summary["gaps"], summary["missing"]), (1, 1))
            self.assertEqual({violation["rule"] for violation in tap.of("violation")}, {"agreement"})
            self.assertTrue(any(f"message {burnt} not received" in gap for gap in tap.of("gap")), tap.of("gap"))
            self.assertIn(f"first difference: the engine holds {lost[0]}, the stream does not", self.explanations(tap)[0])

    def test_resync(self):
        """after a burnt number the stream begins again, and says what the engine holds"""
        with DevServer() as server, Tap(server) as tap:
            server.complete()
            tap.wait_for_all(server.state())
            burnt = server.next_batch()
            server.break_it({"faults": [{"kind": "overflow", "at": burnt}]})
            server.complete("x" * 70)
            server.complete("y" * 70)
            state = server.state()
            tap.wait_for_all(state)
            code, summary = tap.end()
            self.assertEqual((code, summary["verdict"]), (INCOMPLETE, "incomplete"))  # what was lost was not seen
            self.assertEqual((summary["gaps"], summary["missing"]), (1, 1))
            self.assertEqual(summary["digest"], state["digest"])
            self.assertEqual(tap.of("violation"), [])

    def test_overflow_and_reset(self):
        """after AllBlocksCleared the stream says what the engine holds again"""
        with DevServer() as server, Tap(server) as tap:
            server.complete()
            server.break_it({"faults": [{"kind": "overflow", "at": server.next_batch()}]})
            server.complete("x" * 70)
            server.break_it({"now": {"kind": "reset"}})
            server.complete("y" * 70)
            state = server.state()
            tap.wait_for_all(state)
            _, summary = tap.end()
            self.assertEqual(summary["digest"], state["digest"])
            self.assertTrue(summary["synchronised"])
            self.assertGreater(summary["against"]["agreed"], 0)

    def test_overflow_of_the_last_batch(self):
        """a burnt number behind which nothing came leaves the verdict incomplete, whatever agreed before"""
        with (DevServer(events=PLAIN) as server, CountingProxy(server) as proxy,
              Tap(server, port=proxy.server_address[1]) as tap):
            server.complete()
            tap.wait_for_all(server.state())
            proxy.wait_for_comparison()
            server.break_it({"faults": [{"kind": "overflow", "at": server.next_batch()}]})
            server.complete("x" * 70)
            code, summary = tap.end()
            self.assertNotEqual(summary["digest"], server.state()["digest"])
            self.assertGreater(summary["against"]["agreed"], 0)
            self.assertEqual((code, summary["verdict"]), (INCOMPLETE, "incomplete"))

    def test_restart(self):
        """an engine that came back with the number already past: the tap ends knowing of it and holds what it has"""
        for more in ([], ["y" * 70], [PROMPT, "z" * 100]):
            with self.subTest(more=len(more)), DevServer() as server, Tap(server) as tap:
                server.complete()
                server.complete("x" * 70)
                tap.wait_for_all(server.state())
                past = server.next_batch()
                server.break_it({"now": {"kind": "restart"}})
                self.assertGreater(server.next_batch(), past)
                for prompt in more:
                    server.complete(prompt)
                state = server.state()
                self.assertEqual(state["batch"] is None, not more)
                tap.wait_for("restart", "forgotten")
                if more:
                    tap.wait_for_all(state)
                code, summary = tap.end()
                self.assertIn(code, (CLEAN, INCOMPLETE), summary)
                self.assertEqual(summary["violations"], 0)
                self.assertEqual(summary["held"], state["num_blocks"])
                self.assertEqual(summary["digest"], state["digest"])

    def test_same_stream_twice(self):
        """the same requests, one after the other, make the same stream, byte for byte but for its times; faults included"""
        faults = {"seed": 7, "faults": [{"kind": "overflow", "at": 3}, {"kind": "drop", "probability": 0.3},
                                        {"kind": "reset", "probability": 0.15}]}
        runs = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder, DevServer("--num-blocks", "20", "--faults", json.dumps(faults),
                                                                         events=PLAIN) as server:
                path = os.path.join(folder, "recording")
                with Tap(server, "--record", path) as tap:
                    for n in range(20):
                        server.complete(f"{n % 7} " + PROMPT, max_tokens=20)
                    server.wait_until_sent()
                    happened = server.get("/dev/faults")["happened"]
                    # The last message comes for certain.
                    server.break_it({"faults": []})
                    server.complete("x" * 70)
                    state = server.state()
                    tap.wait_for_all(state)
                    tap.end()
                    state.pop("life")
                with open(path, "rb") as recording:
                    runs.append((without_times(recording.read()), state, happened))
        (first, first_state, first_happened), (second, second_state, second_happened) = runs
        self.assertGreater(len(first), 10)
        self.assertEqual([number for number, _, _ in first], [number for number, _, _ in second])
        self.assertEqual(first, second)
        self.assertEqual(first_state, second_state)
        self.assertEqual(first_happened, second_happened)
        for kind in ("overflow", "drop", "reset"):
            self.assertGreater(first_happened[kind], 0, kind)
        self.assertNotIn(3, [number for number, _, _ in first])

    @staticmethod
    def explanations(tap):
        return [violation["what"] for violation in tap.of("violation") if "first difference" in violation["what"]]

    def wait_for_explanation(self, tap):
        with tap.changed:
            self.assertTrue(tap.changed.wait_for(lambda: self.explanations(tap), WATCHDOG), tap.lines)


if __name__ == "__main__":
    unittest.main()
