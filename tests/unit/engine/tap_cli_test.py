#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvwire tap` where no publisher is needed: what it refuses, and what it cannot write. Usage: tap_cli_test.py KVWIRE"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

KVWIRE = sys.argv.pop()
WATCHDOG = 60
SILENT, FAILED = 3, 4


class Tap(unittest.TestCase):
    def tap(self, *arguments):
        """at an address where nobody publishes"""
        with tempfile.TemporaryDirectory() as directory:
            return subprocess.run([KVWIRE, "tap", "--endpoint", f"ipc://{directory}/none", "--wait", "0.05", *arguments],
                                  capture_output=True, text=True, timeout=WATCHDOG)

    def test_a_recording_that_cannot_be_written_is_said_though_nothing_came(self):
        run = self.tap("--record", "/dev/full")
        self.assertEqual(run.returncode, FAILED, run.stderr)
        self.assertIn("cannot write /dev/full: No space left on device", run.stderr)
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(self.tap("--record", f"{directory}/none").returncode, SILENT)
            self.assertEqual(pathlib.Path(directory, "none").stat().st_size, 12)

    def test_a_rank_without_an_engine_is_refused(self):
        run = self.tap("--against-rank", "1")
        self.assertEqual(run.returncode, FAILED)
        self.assertIn("--against-rank: \"1\": there is no engine to ask; allowed: only with --against URL", run.stderr)

    def test_port_0_is_for_binding(self):
        run = subprocess.run([KVWIRE, "tap", "--endpoint", "tcp://127.0.0.1:0"], capture_output=True, text=True, timeout=WATCHDOG)
        self.assertEqual(run.returncode, FAILED)
        for part in ("--endpoint: \"tcp://127.0.0.1:0\"", "port 0 is for a socket that binds", "--bind"):
            self.assertIn(part, run.stderr)
        run = self.tap("--replay-endpoint", "tcp://127.0.0.1:0")
        self.assertEqual(run.returncode, FAILED)
        for part in ("--replay-endpoint: \"tcp://127.0.0.1:0\"", "port 0 is for a socket that binds"):
            self.assertIn(part, run.stderr)

    def refused(self, *arguments):
        run = subprocess.run([KVWIRE, "tap", *arguments], capture_output=True, text=True, timeout=WATCHDOG)
        self.assertEqual(run.returncode, FAILED, run.stderr)
        return run.stderr

    def test_what_several_streams_cannot_have_is_refused_by_name(self):
        two = ("--endpoint", "tcp://127.0.0.1:9", "--endpoint", "tcp://127.0.0.1:8")
        for flags in (("--record", "x"), ("--bind",), ("--dump-state", "x"), ("--dump-digests", "x"), ("--against", "http://a:1")):
            said = self.refused(*two, *flags)
            self.assertIn(f"{flags[0]}: there may be several streams; allowed: only with one --endpoint", said)
        self.assertIn("--replay-endpoint \"tcp://a:1\": it is not said of which stream", self.refused(*two, "--replay-endpoint", "tcp://a:1"))
        self.assertIn("--endpoint \"tcp://127.0.0.1:9\" is given twice; allowed: once", self.refused(*two, "--endpoint", "tcp://127.0.0.1:9"))

    def test_addresses_of_streams_are_refused_with_what_is_allowed(self):
        self.assertIn("--endpoint: \"tcp://b\": the port is missing", self.refused("--endpoint", "tcp://a:1,tcp://b"))
        self.assertIn("dns://NAME:PORT", self.refused("--endpoint", "dns://engines"))
        self.assertIn("No such file or directory", self.refused("--endpoints-file", "/nowhere/streams"))
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("tcp://a:1\nhttp://b:2\n")
            file.flush()
            self.assertIn(f"{file.name}, line 2: endpoint: \"http://b:2\"", self.refused("--endpoints-file", file.name))

    def test_an_address_for_metrics_is_refused_with_what_is_allowed(self):
        for address in ("x", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "::1:9", "127.0.0.1:-1"):
            self.assertIn(f"--metrics \"{address}\": that is no address; allowed: PORT, HOST:PORT", self.refused("--metrics", address))
        self.assertIn("--metrics 203.0.113.9:0: ", self.refused("--metrics", "203.0.113.9:0"))

    def test_B12_a_publisher_that_never_answers_costs_a_line_or_two(self):
        run = subprocess.run([KVWIRE, "tap", "--endpoint", "tcp://127.0.0.1:9", "--endpoint", "tcp://127.0.0.1:8", "--wait", "5"],
                             capture_output=True, text=True, timeout=WATCHDOG)
        self.assertEqual(run.returncode, SILENT)
        self.assertEqual(len(run.stderr.splitlines()), 2, run.stderr)


if __name__ == "__main__":
    unittest.main()
