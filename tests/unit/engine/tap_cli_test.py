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


if __name__ == "__main__":
    unittest.main()
