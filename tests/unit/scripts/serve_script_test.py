#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/serve with more flags: the ports it asks for leave room for ranks and engines, and what it says to try has the addresses
that the engine has. Usage: serve_script_test.py SCRIPT KVWIRE"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

SCRIPT, KVWIRE = sys.argv[1:3]
WATCHDOG = 60
ANY_PORTS = ["--port", "0", "--kv-events-config.endpoint", "tcp://127.0.0.1:0", "--kv-events-config.replay_endpoint",
             "tcp://127.0.0.1:0"]
CURL = re.compile(r"^  curl -s (http://\S+)/v1/completions ", re.M)


def start(kvwire, *flags):
    return subprocess.Popen([SCRIPT, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                            env={**os.environ, "KVWIRE": kvwire})


class ServeScript(unittest.TestCase):
    def told(self, *flags):
        """what it printed until it said what to try, after Ctrl-C ended it"""
        process = start(KVWIRE, *flags)
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if line.startswith("    -d "):
                    break
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=WATCHDOG)
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, 0)
        return "".join(lines)

    def test_ports(self):
        """two ranks, or several engines, never meet at a port"""
        with tempfile.TemporaryDirectory() as directory:
            fake = pathlib.Path(directory, "kvwire")
            fake.write_text('#!/bin/sh\nfor word; do printf "%s" "$word" | tr -d "\\n"; echo; done\n')
            fake.chmod(0o755)
            out, _ = start(str(fake), "--data-parallel-size", "2").communicate(timeout=WATCHDOG)
        words = out.split("\n")
        config = json.loads(words[words.index("--kv-events-config") + 1])
        publish, replay = (int(config[key].rsplit(":", 1)[1]) for key in ("endpoint", "replay_endpoint"))
        http = int(words[words.index("--port") + 1])
        for first, second in ((publish, replay), (replay, http)):
            self.assertGreaterEqual(second - first, 1000)

    def test_text(self):
        """what to try is told once, with the real addresses of the first engine and rank"""
        text = self.told(*ANY_PORTS, "--data-parallel-size", "2", "--instances", "2")
        endpoint, replay = re.search(r"^events of rank 0 on (\S+), replay (\S+), topic", text, re.M).groups()
        self.assertIn(f"{KVWIRE} tap --endpoint {endpoint} --replay-endpoint {replay} --check --removals exact\n", text)
        self.assertEqual(CURL.findall(text), re.findall(r"^serving on (\S+)$", text, re.M)[:1])
        self.assertNotIn(":0", text)

    def test_text_without_events(self):
        """without events there is nothing to tap"""
        text = self.told(*ANY_PORTS, "--kv-events-config.enable_kv_cache_events", "false")
        self.assertEqual(len(CURL.findall(text)), 1)
        self.assertNotIn(" tap ", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
