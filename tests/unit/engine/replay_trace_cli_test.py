#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command as a user meets it: exit codes, summaries, dumps, signals. Usage: replay_trace_cli_test.py KVWIRE GOLDEN_DIR"""
import json
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

KVWIRE, GOLDEN = sys.argv[1:3]
TRACE = f"{GOLDEN}/small_trace.jsonl"
WATCHDOG = 60


def replay(*flags, trace=TRACE, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
    return subprocess.run([KVWIRE, "replay-trace", trace, *flags], stdout=stdout, stderr=stderr, text=True, timeout=WATCHDOG)


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

    def test_several_groups_need_events_that_tell_them_apart(self):
        model = str(pathlib.Path(GOLDEN).parent.parent / "docs/model-configs/mamba-hybrid.json")
        config = {"enable_kv_cache_events": True, "endpoint": f"ipc://{self.path}/events", "kvwire": {"profile": "aibrix"}}
        run = replay("--model-config", model, "--kv-events-config", json.dumps(config))
        self.assertEqual(run.returncode, 1)
        self.assertIn("--model-config has 2 groups, but array events with a legacy tail (profile \"aibrix\") do not say", run.stderr)
        config["kvwire"]["profile"] = "vllm-0.22"
        run = replay("--model-config", model, "--kv-events-config", json.dumps(config), "--limit", "2")
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_partial_blocks_make_hits_longer(self):
        models = pathlib.Path(GOLDEN).parent.parent / "docs/model-configs"
        hits = {}
        for name in ("mamba-hybrid", "mamba-hybrid-partial"):
            run = replay("--model-config", str(models / f"{name}.json"), "--num-blocks", "20000", "--json", *self.events())
            self.assertEqual(run.returncode, 0, run.stderr)
            hits[name] = json.loads(run.stdout)["hit_tokens"]
        self.assertGreater(hits["mamba-hybrid-partial"], hits["mamba-hybrid"])

    def test_lower_tiers_take_what_the_device_evicts_and_every_prompt_token_counts_once(self):
        run = replay("--num-blocks", "400", "--host-blocks", "200", "--disk-blocks", "800", "--disk-dir", f"{self.path}/blocks",
                     "--tensor-parallel-size", "2", "--json", "--dump-state", f"{self.path}/state", *self.events())
        self.assertEqual(run.returncode, 0, run.stderr)
        summary = json.loads(run.stdout)
        for name in ("host_hit_tokens", "disk_hit_tokens", "host_stored", "disk_stored", "host_removed", "disk_removed"):
            self.assertGreater(summary[name], 0, name)
        found = summary["hit_tokens"] + summary["host_hit_tokens"] + summary["disk_hit_tokens"]
        self.assertEqual(found + summary["computed_prompt_tokens"], summary["prompt_tokens"])
        media = {line.split(" ")[1] for line in (self.path / "state").read_text().splitlines()}
        self.assertEqual(media, {"GPU", "CPU", "DISK"})
        self.assertEqual(list((self.path / "blocks").iterdir()), [])

    def test_lower_tiers_are_refused_by_flag(self):
        directory = str(self.path)
        (self.path / "mine").write_text("x")
        for flags, words in (
                (["--disk-blocks", "8"], "--disk-blocks is 8, but there is no --disk-dir; allowed: both, or neither"),
                (["--disk-dir", directory], f'--disk-dir is "{directory}", but --disk-blocks is 0; allowed: both, or neither'),
                (["--host-blocks", "8", "--vllm-exact"], "--host-blocks is 8; allowed: 0, as --vllm-exact is given"),
                (["--disk-blocks", "8", "--disk-dir", directory, "--vllm-exact"],
                 "--disk-blocks is 8; allowed: 0, as --vllm-exact is given"),
                (["--disk-blocks", "8", "--disk-dir", directory], 'it holds "mine", which is no regular file of blocks'),
                (["--disk-blocks", "8", "--disk-dir", f"{directory}/mine"], f'disk_dir is "{directory}/mine": it cannot be ')):
            with self.subTest(flags=flags):
                run = replay(*flags)
                self.assertEqual(run.returncode, 1)
                self.assertIn(words, run.stderr)
        self.assertEqual((self.path / "mine").read_text(), "x")

    def test_a_disk_that_is_full_fails_its_stores_and_nothing_else(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        run = subprocess.run([KVWIRE, "replay-trace", TRACE, "--num-blocks", "400", "--disk-blocks", "800", "--disk-dir",
                              f"{self.path}/blocks", "--json"], capture_output=True, text=True, timeout=WATCHDOG, preexec_fn=limit)
        self.assertEqual(run.returncode, 0, run.stderr)
        summary = json.loads(run.stdout)
        self.assertEqual((summary["disk_stored"], summary["disk_hit_tokens"]), (0, 0))
        self.assertGreater(summary["disk_failed_stores"], 0)
        self.assertEqual(summary["finished"] + summary["refused"], summary["requests"])
        self.assertEqual(run.stderr.count("cannot be written: File too large"), 1)

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
        for flags, text in ((["--prefix-caching-hash-algo", "md5"], "sha256_cbor"),
                            (["--wait-for-subscriber"], "--wait-for-subscriber"), (["--dump-state", "x"], "enable_kv_cache_events"),
                            (["--dump-state", "/nonexistent/x", *self.events()], "/nonexistent/x"),
                            (["--dump-state", "x", "--dump-digests", "x", *self.events()], "different files"),
                            (["--num-blocks", "268435456", "--block-size", "4096"], "268435456 blocks of 4096 tokens")):
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

    def test_a_signal_ends_a_step_that_would_take_hours(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([KVWIRE, "replay-trace", TRACE, "--json", "--prefill-overhead-us", "1e9", "--max-num-seqs", "1",
                                        *self.events()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            process.stderr.readline()
            stat = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/stat")
            while stat.read_text().rsplit(")", 1)[1].split()[0] != "S":  # until it sleeps
                time.sleep(0.01)
            process.send_signal(number)
            out, _ = process.communicate(timeout=WATCHDOG)
            self.assertEqual(process.returncode, 130)
            self.assertTrue(json.loads(out)["stopped"])

    def test_only_a_subscription_to_the_topic_ends_the_wait_for_a_subscriber(self):
        events = self.events(topic="kv@pod")
        process = subprocess.Popen([KVWIRE, "replay-trace", TRACE, "--json", "--wait-for-subscriber", "--dump-digests", f"{self.path}/own",
                                    *events], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        tap = [KVWIRE, "tap", "--endpoint", f"ipc://{self.path}/events", "--quiet"]
        stranger = subprocess.Popen([*tap, "--topic", "other"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            stranger.stdout.readline()
            subprocess.run([*tap, "--topic", "kv@", "--wait", "30", "--until-idle", "3", "--dump-digests", f"{self.path}/seen"],
                           capture_output=True, timeout=WATCHDOG)
            process.communicate(timeout=WATCHDOG)
            self.assertEqual(process.returncode, 0)
            # From the first message on.
            self.assertEqual((self.path / "seen").read_text(), (self.path / "own").read_text())
        finally:
            for started in (stranger, process):
                started.kill()
                started.communicate()

    def test_numbers_out_of_range_are_refused_with_flag_value_and_range(self):
        times = ("--speed", "--linger", "--prefill-overhead-us", "--prefill-us-per-token", "--decode-us-per-request")
        counts = ("--limit", "--num-blocks", "--block-size", "--max-num-seqs", "--max-num-batched-tokens", "--max-model-len")
        cases = [(flag, value) for flag in times for value in ("nan", "NaN", "inf", "-1", "1e10", "1e999", "x", "")]
        cases += [(flag, value) for flag in counts for value in ("-1", "1.5", "1e3", "0x10", "18446744073709551616", "9" * 400, "x", "")]
        cases += [("--num-blocks", "1"), ("--block-size", "0"), ("--max-num-seqs", "0"), ("--max-num-batched-tokens", "0"),
                  ("--max-model-len", "1"), ("--max-num-seqs", "4294967296")]
        for flag, value in cases:
            # As one argument: an empty value alone would be taken for none.
            run = replay(f"{flag}={value}" if value else flag, *([] if value else [""]))
            self.assertNotEqual(run.returncode, 0, (flag, value))
            self.assertIn(f"{flag}: \"{value[:60]}", run.stderr)
            self.assertRegex(run.stderr, r"allowed: (a whole number|a number|seconds) from \d+ to \d+")
            self.assertLess(len(run.stderr), 300)

    def test_the_largest_numbers_are_taken(self):
        run = replay("--limit", "18446744073709551615", "--max-num-seqs", "4294967295", "--max-num-batched-tokens", "4294967295",
                     "--max-model-len", "4294967295", "--speed", "1e9", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(json.loads(run.stdout)["requests"], json.loads(replay("--json").stdout)["requests"])

    def test_memory_that_cannot_be_had_is_refused(self):
        run = replay("--num-blocks", "16777216", "--block-size", "16777216")
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("16777216 blocks of 16777216 tokens", run.stderr)
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        if subprocess.run([KVWIRE, "--version"], capture_output=True, preexec_fn=limit).returncode != 0:
            self.skipTest("this build of the program needs more address space itself, as sanitizers do")
        run = subprocess.run([KVWIRE, "replay-trace", TRACE, "--num-blocks", "60000000", "--block-size", "1"], capture_output=True, text=True,
                             timeout=WATCHDOG, preexec_fn=limit)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("--num-blocks: 60000000: there is no memory", run.stderr)

    def test_output_that_cannot_be_written_ends_with_1(self):
        for flags in ([], ["--json"]):
            with open("/dev/full", "w") as full:
                run = replay(*flags, stdout=full)
            self.assertEqual(run.returncode, 1)
            self.assertIn("standard output: No space left on device", run.stderr)
        closed = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', KVWIRE, "replay-trace", TRACE, *self.events()],
                                stderr=subprocess.PIPE, text=True, timeout=WATCHDOG)
        self.assertEqual(closed.returncode, 1)
        self.assertIn("standard output: Bad file descriptor", closed.stderr)
        for flag in ("--help", "--version"):
            with open("/dev/full", "w") as full:
                self.assertEqual(subprocess.run([KVWIRE, flag], stdout=full, stderr=subprocess.DEVNULL, timeout=WATCHDOG).returncode, 1)

    def test_help_shows_no_value_that_a_flag_stands_for(self):
        for command in ("serve", "replay-trace", "tap", "top", "doctor", "play"):
            run = subprocess.run([KVWIRE, command, "--help"], capture_output=True, text=True, timeout=WATCHDOG)
            self.assertEqual(run.returncode, 0)
            self.assertNotIn("{false}", run.stdout)

    def test_dumps_that_cannot_be_written_end_with_1(self):
        for flag in ("--dump-state", "--dump-digests"):
            run = replay(flag, "/dev/full", *self.events())
            self.assertEqual(run.returncode, 1)
            self.assertIn('"/dev/full": No space left on device', run.stderr)

    def test_messages_that_cannot_be_written_do_not_change_the_outcome(self):
        with open("/dev/full", "w") as full:
            self.assertEqual(replay("--num-blocks", "200", stderr=full).returncode, 0)

    def test_a_directory_or_a_missing_file_is_named(self):
        run = replay(trace=str(self.path))
        self.assertEqual(run.returncode, 1)
        self.assertIn(f'"{self.path}": is a directory', run.stderr)
        run = replay(trace=f"{self.path}/none")
        self.assertEqual(run.returncode, 1)
        self.assertIn(f'"{self.path}/none": No such file', run.stderr)

    def test_an_unknown_command_is_named_with_the_known_ones(self):
        for arguments in (["foo"], ["foo", "--bar"], ["fo\x1bo"]):
            run = subprocess.run([KVWIRE, *arguments], capture_output=True, text=True, timeout=WATCHDOG)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(arguments[0].replace("\x1b", "\\x1b"), run.stderr)
            for command in ("play", "replay-trace", "tap"):
                self.assertIn(command, run.stderr)

    def test_an_unknown_dotted_key_is_named_with_the_known_ones(self):
        run = replay("--kv-events-config.colour", "red")
        self.assertNotEqual(run.returncode, 0)
        for text in ("--kv-events-config.colour", "buffer_steps", "kvwire.removals", "kvwire.medium_names.GPU"):
            self.assertIn(text, run.stderr)

    def test_events_that_are_off_are_said_once(self):
        for flags in (["--kv-events-config", "{}"], ["--kv-events-config.topic", "x"], []):
            run = replay("--limit", "1", *flags)
            self.assertEqual(run.returncode, 0)
            self.assertEqual(run.stderr.count("KV-cache events are off (enable_kv_cache_events is false)"), 1)
        self.assertNotIn("events are off", replay("--limit", "1", *self.events()).stderr)

    def test_text_from_elsewhere_reaches_the_terminal_escaped(self):
        trace = self.path / "bad.jsonl"
        trace.write_bytes(b'\x1b[31m\xff not JSON\n')
        run = replay(trace=str(trace))
        self.assertEqual(run.returncode, 1)
        self.assertIn('trace line 1: "\\x1b[31m\\xff not JSON" is not a JSON object', run.stderr)

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

    def test_a_tap_that_joins_an_idle_engine_ends_once_it_has_the_snapshot(self):
        events = self.events(endpoint=f"ipc://{self.path}/live", replay_endpoint=f"ipc://{self.path}/replay", publisher="zmq",
                             buffer_steps=10, kvwire={"restart_guard_s": 0})
        truth, held = self.path / "engine", self.path / "tap"
        engine = subprocess.Popen([KVWIRE, "replay-trace", TRACE, "--json", "--num-blocks", "4000", "--linger", "600", "--dump-state",
                                   str(truth), *events], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            engine.stdout.readline()
            tap = subprocess.run([KVWIRE, "tap", "--check", "--quiet", "--endpoint", f"ipc://{self.path}/live", "--replay-endpoint",
                                  f"ipc://{self.path}/replay", "--wait", "600", "--until-idle", "0.1", "--dump-state", str(held)],
                                 capture_output=True, text=True, timeout=WATCHDOG)
            self.assertEqual(tap.returncode, 0, tap.stdout)
            self.assertIn("snapshots 1,", tap.stdout)
            self.assertEqual(held.read_text(), truth.read_text())
        finally:
            engine.terminate()
            engine.communicate(timeout=WATCHDOG)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
