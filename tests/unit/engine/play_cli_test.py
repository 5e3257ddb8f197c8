#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvwire play as a user meets it: exit codes, messages, signals. Usage: play_cli_test.py KVWIRE"""
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

KVWIRE = sys.argv[1]
WATCHDOG = 60
SECOND = 1_000_000_000


def recording(count, topic=b"kv", seconds_apart=0):
    """The bytes of a recording; the payloads are no batches, play does not look into them."""
    out = b"KVWIREC\n" + struct.pack(">I", 1)
    for number in range(count):
        payload = b"payload %d" % number
        out += struct.pack(">QQII", SECOND * (1 + number * seconds_apart), number, len(topic), len(payload)) + topic + payload
    return out


class Play(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = pathlib.Path(self.directory.name)
        self.file = self.path / "recording"
        self.endpoint = f"ipc://{self.path}/live"

    def play(self, *flags, content=None, endpoint=None, **more):
        if content is not None:
            self.file.write_bytes(content)
        if "stdout" not in more:
            more.update(stdout=subprocess.PIPE)
        return subprocess.run([KVWIRE, "play", str(self.file), "--endpoint", endpoint or self.endpoint, *flags],
                              stderr=subprocess.PIPE, text=True, timeout=WATCHDOG, **more)

    def test_a_whole_recording_ends_with_0(self):
        run = self.play(content=recording(3))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("played 3 messages", run.stdout)

    def test_a_cut_recording_plays_what_is_good_and_ends_with_1(self):
        run = self.play(content=recording(3)[:-2])
        self.assertEqual(run.returncode, 1)
        self.assertIn("played 2 messages", run.stdout)
        self.assertIn(f"{self.file} ends inside a message, at byte {len(recording(2))}", run.stderr)

    def test_a_file_without_a_whole_message_ends_with_1(self):
        for length in (0, 5, 12, 20, len(recording(1)) - 1):
            run = self.play(content=recording(1)[:length])
            self.assertEqual(run.returncode, 1, length)
            self.assertIn(str(self.file), run.stderr)

    def test_a_directory_is_named_as_one(self):
        self.file.mkdir()
        run = self.play()
        self.assertEqual(run.returncode, 1)
        self.assertIn(f"{self.file}", run.stderr)
        self.assertIn("is a directory", run.stderr)

    def test_output_that_cannot_be_written_ends_with_1(self):
        with open("/dev/full", "w") as full:
            run = self.play(content=recording(3), stdout=full)
        self.assertEqual(run.returncode, 1)
        self.assertIn("standard output: No space left on device", run.stderr)
        closed = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', KVWIRE, "play", str(self.file), "--endpoint", self.endpoint],
                                stderr=subprocess.PIPE, text=True, timeout=WATCHDOG)
        self.assertEqual(closed.returncode, 1)
        self.assertIn("standard output: Bad file descriptor", closed.stderr)

    def test_numbers_out_of_range_are_refused_with_flag_value_and_range(self):
        for flag, value in (("--speed", "nan"), ("--speed", "-1"), ("--linger", "inf"), ("--linger", "1e300"), ("--linger", "x"),
                            ("--buffer-steps", "-1"), ("--buffer-steps", "1.5"), ("--buffer-steps", "9" * 400)):
            run = self.play(flag, value, content=recording(1))
            self.assertNotEqual(run.returncode, 0, (flag, value))
            self.assertIn(f"{flag}: \"{value[:60]}", run.stderr)
            self.assertIn("allowed: ", run.stderr)
            self.assertLess(len(run.stderr), 300)

    def test_two_sockets_at_one_address_are_refused_with_both_flags(self):
        for both in (self.endpoint, "tcp://127.0.0.1:5999"):
            run = self.play("--replay-endpoint", both, content=recording(1), endpoint=both)
            self.assertEqual(run.returncode, 1)
            self.assertIn("--endpoint", run.stderr)
            self.assertIn("--replay-endpoint", run.stderr)

    def test_inproc_addresses_are_refused(self):
        run = self.play(content=recording(1), endpoint="inproc://x")
        self.assertEqual(run.returncode, 1)
        self.assertIn('--endpoint: "inproc://x"', run.stderr)
        run = self.play("--replay-endpoint", "inproc://y", content=recording(1))
        self.assertEqual(run.returncode, 1)
        self.assertIn('--replay-endpoint: "inproc://y"', run.stderr)

    def test_a_failed_bind_to_a_name_says_what_a_bind_takes(self):
        run = self.play(content=recording(1), endpoint="tcp://no-such-interface:0")
        self.assertEqual(run.returncode, 1)
        self.assertIn("tcp://no-such-interface:0", run.stderr)
        self.assertIn("interface", run.stderr)
        self.assertIn("*", run.stderr)

    def test_connect_needs_a_host(self):
        run = self.play("--connect", content=recording(1), endpoint="tcp://*:5557")
        self.assertEqual(run.returncode, 1)
        self.assertIn("--endpoint", run.stderr)
        self.assertIn("host and port must be given", run.stderr)

    def test_connecting_where_nobody_listens_is_said_once(self):
        run = self.play("--connect", "--linger", "0", content=recording(3))
        self.assertEqual(run.stderr.count("nobody listens"), 1, run.stderr)
        self.assertIn(self.endpoint, run.stderr)

    def test_waiting_where_nobody_listens_is_said_after_a_while(self):
        self.file.write_bytes(recording(1))
        process = subprocess.Popen([KVWIRE, "play", str(self.file), "--endpoint", self.endpoint, "--connect", "--wait-for-subscriber"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertIn(f"nobody listens at {self.endpoint}", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=WATCHDOG)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(rest, "")

    def test_only_a_subscription_to_the_topic_ends_the_wait_for_a_subscriber(self):
        self.file.write_bytes(recording(5, topic=b"kv@pod"))
        play = subprocess.Popen([KVWIRE, "play", str(self.file), "--endpoint", self.endpoint, "--wait-for-subscriber"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        play.stdout.readline()  # it is bound
        tap = [KVWIRE, "tap", "--endpoint", self.endpoint, "--quiet"]
        stranger = subprocess.Popen([*tap, "--topic", "other"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            stranger.stdout.readline()
            record = self.path / "copy"
            subprocess.run([*tap, "--topic", "kv@", "--wait", "30", "--until-idle", "0.5", "--record", str(record)],
                           capture_output=True, timeout=WATCHDOG)
            out, _ = play.communicate(timeout=WATCHDOG)
            self.assertIn("played 5 messages", out)
            self.assertEqual(record.stat().st_size, self.file.stat().st_size)
        finally:
            stranger.kill()
            stranger.communicate()
            play.kill()
            play.communicate()

    def test_a_signal_ends_the_wait_for_a_subscriber(self):
        self.file.write_bytes(recording(1))
        process = subprocess.Popen([KVWIRE, "play", str(self.file), "--endpoint", self.endpoint, "--wait-for-subscriber"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=WATCHDOG)
        self.assertEqual(process.returncode, 130)
        self.assertIn("played 0 messages", out)

    def test_a_signal_ends_a_wait_for_the_next_message(self):
        self.file.write_bytes(recording(2, seconds_apart=3600))
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([KVWIRE, "play", str(self.file), "--endpoint", self.endpoint, "--speed", "0.001"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            process.stdout.readline()
            process.send_signal(number)
            out, _ = process.communicate(timeout=WATCHDOG)
            self.assertEqual(process.returncode, 130)
            self.assertRegex(out, r"played [01] messages")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
