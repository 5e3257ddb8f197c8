#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvwire play --faults as a user meets it, with kvwire tap at the other end. Usage: play_faults_cli_test.py KVWIRE"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

KVWIRE = sys.argv[1]
WATCHDOG = 60
SECOND = 1_000_000_000


def recording(count):
    """A recording of empty batches: [0.0, []] in MessagePack."""
    out = b"KVWIREC\n" + struct.pack(">I", 1)
    payload = b"\x92\xcb" + struct.pack(">d", 0.0) + b"\x90"
    for number in range(count):
        out += struct.pack(">QQII", SECOND, number, 2, len(payload)) + b"kv" + payload
    return out


class PlayFaults(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = pathlib.Path(self.directory.name)
        self.file = self.path / "recording"
        self.file.write_bytes(recording(20))
        self.endpoint = f"ipc://{self.path}/live"
        self.replay = f"ipc://{self.path}/replay"

    def refused(self, faults):
        run = subprocess.run([KVWIRE, "play", str(self.file), "--endpoint", self.endpoint, "--faults", faults],
                             capture_output=True, text=True, timeout=WATCHDOG)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertEqual(run.stdout, "")
        return run.stderr

    def watched(self, faults, replay=True):
        """The lines of play and of a tap that was there from the beginning."""
        play = subprocess.Popen([KVWIRE, "play", str(self.file), "--endpoint", self.endpoint, "--faults", faults,
                                 "--wait-for-subscriber", *(["--replay-endpoint", self.replay, "--linger", "30"] if replay else [])],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            play.stdout.readline()  # it is bound
            tap = subprocess.run([KVWIRE, "tap", "--endpoint", self.endpoint, "--wait", "30", "--until-idle", "1", "--check",
                                  *(["--replay-endpoint", self.replay] if replay else [])],
                                 capture_output=True, text=True, timeout=WATCHDOG)
            if replay:
                play.terminate()
            out, err = play.communicate(timeout=WATCHDOG)
            return out, tap.stdout + tap.stderr, tap.returncode
        finally:
            play.kill()
            play.communicate()

    def test_a_dropped_message_is_healed_and_counted(self):
        out, seen, code = self.watched('{"faults": [{"kind": "drop", "at": 7}]}')
        self.assertIn("faults: drop 1, duplicate 0, delay 0, undecodable 0", out)
        self.assertIn("played 20 messages", out)
        self.assertIn("healed", seen)
        self.assertEqual(code, 0, seen)

    def test_without_a_replay_a_dropped_message_is_a_gap(self):
        _, seen, code = self.watched('{"faults": [{"kind": "drop", "at": 7}]}', replay=False)
        self.assertIn("gap", seen)
        self.assertEqual(code, 2, seen)

    def test_an_undecodable_message_is_a_violation(self):
        _, seen, code = self.watched('{"faults": [{"kind": "undecodable", "at": 7}]}')
        self.assertIn("undecodable", seen)
        self.assertEqual(code, 1, seen)

    def test_duplicates_and_delays_harm_nobody_and_the_last_message_is_waited_for(self):
        script = self.path / "faults.json"
        script.write_text(json.dumps({"seed": 3, "faults": [{"kind": "duplicate", "every": 5}, {"kind": "delay", "at": 18, "ms": 100}]}))
        out, seen, _ = self.watched(str(script), replay=False)
        self.assertIn("faults: drop 0, duplicate 4, delay 1, undecodable 0", out)
        self.assertIn("played 20 messages", out)
        self.assertIn("messages 20 (0 replayed)", seen)
        self.assertIn("gaps 0", seen)
        self.assertIn("violations 0", seen)

    def test_overflow_and_the_faults_of_an_engine_are_refused_by_name(self):
        for fault in ({"kind": "overflow"}, {"kind": "evict", "block": "0" * 16}, {"kind": "preempt"}, {"kind": "reset"}, {"kind": "restart"}):
            error = self.refused(json.dumps({"faults": [{**fault, "at": 1}]}))
            self.assertIn(f'--faults: faults[0].kind: "{fault["kind"]}", which play cannot do; allowed: "drop", "duplicate", '
                          '"delay" or "undecodable"', error)

    def test_a_wrong_script_is_refused_with_field_value_and_what_is_allowed(self):
        self.assertIn("--faults: faults[0].every: 0; allowed: 1 to", self.refused('{"faults": [{"kind": "drop", "every": 0}]}'))
        self.assertIn('--faults: faults: "{"', self.refused('{"'))
        script = self.path / "faults.json"
        script.write_text("[]")
        self.assertIn('--faults: faults: "[]" is not a JSON object', self.refused(str(script)))

    def test_a_file_that_cannot_be_read_is_named_with_the_reason(self):
        self.assertIn('--faults: "no-such-file": No such file or directory; allowed: a JSON object, or', self.refused("no-such-file"))
        self.assertIn(f'--faults: "{self.path}"', self.refused(str(self.path)))
        self.assertIn("Is a directory", self.refused(str(self.path)))
        large = self.path / "large"
        large.write_bytes(b" " * (1 << 21))
        self.assertIn("more than 1048576 bytes", self.refused(str(large)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
