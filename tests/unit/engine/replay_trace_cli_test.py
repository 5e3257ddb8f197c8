#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command as a user meets it: exit codes, summaries, dumps, signals. Usage: replay_trace_cli_test.py KVWIRE GOLDEN_DIR"""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

KVWIRE, GOLDEN = sys.argv[1:3]
TRACE = f"{GOLDEN}/small_trace.jsonl"
WATCHDOG = 60


def replay(*flags, trace=TRACE):
    return subprocess.run([KVWIRE, "replay-trace", trace, *flags], capture_output=True, text=True, timeout=WATCHDOG)


class ReplayTrace(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = pathlib.Path(self.directory.name)

    def events(self, **more):
        return ["--kv-events-config", json.dumps({"enable_kv_cache_events": True, "endpoint": f"ipc://{self.path}/events", **more})]

    def test_the_summary_has_the_oracles_figures(self):
        run = replay("--max-num-seqs", "1", "--num-blocks", "10000", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        summary = json.loads(run.stdout)
        expected = json.loads(pathlib.Path(GOLDEN, "small_trace.expected.json").read_text())
        self.assertEqual(summary["new_prompt_blocks"], expected["unique_prompt_blocks"])
        for name in ("requests", "prompt_tokens", "full_prompt_blocks", "hit_blocks", "hit_tokens"):
            self.assertEqual(summary[name], expected[name], name)
        self.assertEqual(summary["batches"], 0)
        self.assertGreater(summary["peak_memory_bytes"], 0)

    def test_the_dumps_have_a_line_per_block_and_per_batch(self):
        run = replay("--num-blocks", "400", "--json", "--dump-state", f"{self.path}/state", "--dump-digests", f"{self.path}/digests",
                     *self.events())
        self.assertEqual(run.returncode, 0, run.stderr)
        summary = json.loads(run.stdout)
        digests = (self.path / "digests").read_text().splitlines()
        self.assertEqual(len(digests), summary["batches"])
        self.assertEqual([int(line.split(" ")[0]) for line in digests], list(range(summary["batches"])))
        state = (self.path / "state").read_text().splitlines()
        self.assertEqual(state, sorted(set(state)))
        self.assertIn(f"0/GPU {len(state)}:", digests[-1])
        self.assertRegex(state[0], r"^0 GPU [0-9a-f]{16}$")

    def test_the_same_replay_gives_the_same_state(self):
        for name in ("a", "b"):
            run = replay("--num-blocks", "400", "--dump-digests", f"{self.path}/{name}", *self.events())
            self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual((self.path / "a").read_text(), (self.path / "b").read_text())

    def test_a_request_that_can_never_fit_is_named_with_both_numbers(self):
        run = replay("--num-blocks", "200")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stderr, r"needs \d+ blocks; the pool has 199")
        self.assertRegex(run.stdout, r"finished, [1-9]\d* refused")

    def test_a_bad_line_is_named(self):
        trace = self.path / "bad.jsonl"
        trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n{"timestamp": 0}\n')
        run = replay(trace=str(trace))
        self.assertEqual(run.returncode, 1)
        self.assertIn("trace line 2: input_length is missing", run.stderr)

    def test_what_cannot_be_is_refused_at_start(self):
        for flags, text in ((["--num-blocks", "0"], "num_blocks"), (["--prefix-caching-hash-algo", "md5"], "sha256_cbor"),
                            (["--wait-for-subscriber"], "--wait-for-subscriber"), (["--dump-state", "/nonexistent/x"], "/nonexistent/x")):
            run = replay("--limit", "1", *flags)
            self.assertEqual(run.returncode, 1, flags)
            self.assertIn(text, run.stderr)

    def test_a_signal_ends_it_with_the_summary_so_far(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            # Hours of trace time to wait.
            process = subprocess.Popen([KVWIRE, "replay-trace", TRACE, "--json", "--speed", "0.003", *self.events()],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            process.stderr.readline()  # the publisher says that it binds: signals are handled
            process.send_signal(number)
            out, _ = process.communicate(timeout=WATCHDOG)
            self.assertEqual(process.returncode, 130)
            self.assertTrue(json.loads(out)["stopped"])

    def test_a_second_engine_at_the_same_endpoint_fails_naming_it(self):
        endpoint = self.events(endpoint=f"ipc://{self.path}/taken")
        first = subprocess.Popen([KVWIRE, "replay-trace", TRACE, "--json", "--linger", "600", *endpoint],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            first.stdout.readline()  # the summary: it is bound and lingers
            second = replay(*endpoint)
            self.assertEqual(second.returncode, 1)
            self.assertIn(f"ipc://{self.path}/taken", second.stderr)
        finally:
            first.terminate()
            first.communicate(timeout=WATCHDOG)
        self.assertEqual(first.returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
