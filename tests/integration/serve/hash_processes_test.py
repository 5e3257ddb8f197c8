#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""F1: which engines hash alike, seen from outside: processes of their own, one prompt, and the hashes on the wire.

Usage: hash_processes_test.py KVWIRE. Every port is 0 and read back."""
import itertools
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serve_process_test import EVENTS, KVWIRE, PROMPT, WATCHDOG, Server  # takes KVWIRE from the command line

HEX_DIGITS = {"sha256": 64, "sha256_cbor": 64, "xxhash": 32, "xxhash_cbor": 32}
BLOCKS, BLOCK_SIZE = 3, 16  # of PROMPT
# All bytes of a hash, not only those that an integer holds.
WHOLE_HASHES = {**EVENTS, "kvwire": {**EVENTS["kvwire"], "hash_form": "bytes"}}


class Engine:
    """What a process announces for PROMPT, the root it tells, and its warnings of a random one."""

    def __init__(self, algorithm, seed):
        os.environ.pop("PYTHONHASHSEED", None)
        environment = {} if seed is None else {"PYTHONHASHSEED": seed}
        with Server("--port", "0", "--prefix-caching-hash-algo", algorithm, events=WHOLE_HASHES, environment=environment) as server:
            self.root = json.loads(server.ask("GET", "/kv_event_sources")[1])["hash"]["root"]
            stored = self.first_stored(server)
            self.warnings = [line for line in server.end()[1].splitlines() if "[warning]" in line and "random" in line]
        self.hashes = stored["block_hashes"]
        self.tokens = stored["token_ids"]

    @staticmethod
    def first_stored(server):
        ((_, endpoint, replay, _),) = server.sources
        tap = subprocess.Popen([KVWIRE, "tap", "--endpoint", endpoint, "--replay-endpoint", replay, "--json"], stdout=subprocess.PIPE,
                               text=True)
        try:
            server.complete()
            for line in tap.stdout:
                for event in json.loads(line).get("events", []):
                    return event
            raise AssertionError("the tap ended without an event")
        finally:
            tap.kill()
            tap.wait(WATCHDOG)
            tap.stdout.close()


class HashProcesses(unittest.TestCase):
    def assert_sound(self, engine, algorithm):
        self.assertEqual(len(engine.tokens), BLOCKS * BLOCK_SIZE)
        self.assertEqual({len(each) for each in engine.hashes}, {HEX_DIGITS[algorithm]})
        self.assertEqual(len(set(engine.hashes)), BLOCKS)

    def assert_nothing_in_common(self, engines):
        for one, other in itertools.combinations(engines, 2):
            self.assertEqual(one.tokens, other.tokens)
            self.assertFalse(set(one.hashes) & set(other.hashes))

    def test_seed(self):
        """F1: processes with one seed and one algorithm announce the same hashes, with another of either no hash in common"""
        different = []
        for algorithm in HEX_DIGITS:
            with self.subTest(algorithm=algorithm):
                one, same, other = Engine(algorithm, "7"), Engine(algorithm, "7"), Engine(algorithm, "8")
                different += [one, other]
                for engine in (one, same, other):
                    self.assert_sound(engine, algorithm)
                    self.assertEqual(engine.warnings, [])
                self.assertEqual((one.hashes, one.tokens, one.root), (same.hashes, same.tokens, same.root))
                self.assertNotEqual(one.root, other.root)
        self.assertEqual(len(different), 2 * len(HEX_DIGITS))
        self.assert_nothing_in_common(different)

    def test_without_a_seed(self):
        """F1: without a seed SHA-256 processes announce the same hashes; XXH3 ones have differing roots and warn of it"""
        for algorithm in HEX_DIGITS:
            with self.subTest(algorithm=algorithm):
                one, other = Engine(algorithm, None), Engine(algorithm, None)
                for engine in (one, other):
                    self.assert_sound(engine, algorithm)
                if algorithm.startswith("sha256"):
                    self.assertEqual((one.hashes, one.root, one.warnings), (other.hashes, other.root, []))
                    continue
                self.assertNotEqual(one.root, other.root)
                self.assert_nothing_in_common([one, other])
                for engine in (one, other):
                    self.assertEqual(len(engine.warnings), 1, engine.warnings)
                    self.assertIn(f"--prefix-caching-hash-algo {algorithm}", engine.warnings[0])
                    self.assertIn("PYTHONHASHSEED", engine.warnings[0])


if __name__ == "__main__":
    unittest.main()
