#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two `kvwire serve` processes, a prefill and a decode engine, and a test that is the proxy between them.

Usage: kv_transfer_process_test.py KVWIRE. Every port is 0 and read back."""
import json
import signal
import subprocess
import sys
import threading
import time
import unittest

from serve_process_test import KVWIRE, WATCHDOG, Server, refused

REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
                 "remote_host": None, "remote_port": None}
PROMPTS = ["Once upon a time there was a king. " * length + f"And then {length}?" for length in (1, 3, 3, 8, 40)]


def transfer(role, **keys):
    return ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": role, **keys})]


def through_proxy(prefill, decode, prompt, **fields):
    """As vLLM's proxies for disaggregated prefill do it."""
    first = prefill.complete(prompt, **{**fields, "max_tokens": 1, "kv_transfer_params": REMOTE_DECODE})
    return decode.complete(prompt, **fields, kv_transfer_params=first["kv_transfer_params"])


def text_of(answer):
    return answer["choices"][0]["text"]


def metric(server, name):
    for line in server.ask("GET", "/metrics")[1].splitlines():
        if line.startswith(name + "{"):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(name)


class KVTransferTest(unittest.TestCase):
    def stored(self, server):
        """the hashes that a server has announced so far"""
        ((_, endpoint, replay, _),) = server.sources
        count = metric(server, "kvwire_blocks_stored_total")
        tap = subprocess.Popen([KVWIRE, "tap", "--endpoint", endpoint, "--replay-endpoint", replay, "--json"],
                               stdout=subprocess.PIPE, text=True)
        hashes = []
        for line in tap.stdout:
            for event in json.loads(line).get("events", []):
                hashes += event.get("block_hashes", []) if event["type"] == "BlockStored" else []
            if len(hashes) >= count:
                break
        tap.kill()
        tap.wait()
        tap.stdout.close()
        return hashes

    def test_answers_are_those_of_one_engine(self):
        """P50: answers through two engines are those of one; the decode engine's stream is sound and has all prompt blocks"""
        with Server("--port", "0", events=None) as single:
            expected = [text_of(single.complete(prompt, max_tokens=20)) for prompt in PROMPTS]
        with Server("--port", "0", *transfer("kv_producer")) as prefill, \
                Server("--port", "0", *transfer("kv_consumer"), "--kv-transfer-overhead-us", "2000",
                       "--kv-transfer-us-per-block", "10") as decode:
            ((_, endpoint, replay, _),) = decode.sources
            tap = subprocess.Popen([KVWIRE, "tap", "--endpoint", endpoint, "--replay-endpoint", replay, "--check", "--removals",
                                    "exact", "--json"], stdout=subprocess.PIPE, text=True)
            answers = [None] * len(PROMPTS)

            def ask(index):
                answers[index] = through_proxy(prefill, decode, PROMPTS[index], max_tokens=20)

            clients = [threading.Thread(target=ask, args=(index,)) for index in range(len(PROMPTS))]
            for client in clients:
                client.start()
            for client in clients:
                client.join(WATCHDOG)
            self.assertEqual([text_of(answer) for answer in answers], expected)
            for prompt, answer in zip(PROMPTS, answers):
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached, min(len(prompt) // 16 * 16, len(prompt) - 1))
            self.assertEqual(metric(decode, "kvwire_kv_transfer_failed_total"), 0)
            self.assertGreater(metric(decode, "kvwire_kv_transfer_received_tokens_total"), 0)
            # What the prefill engine computed are the prompts' blocks and nothing else.
            announced = set(self.stored(prefill))
            self.assertEqual(len(announced), len({prompt[:end] for prompt in PROMPTS for end in range(16, len(prompt) + 1, 16)}))
            prompts = set()
            for line in tap.stdout:
                for event in json.loads(line).get("events", []):
                    if event["type"] != "BlockStored":
                        continue
                    self.assertEqual(event["medium"], "GPU")
                    prompts.update(event["block_hashes"])
                if prompts >= announced:
                    break
            self.assertGreaterEqual(prompts, announced)
            tap.send_signal(signal.SIGINT)
            self.assertEqual(tap.wait(WATCHDOG), 0)
            tap.stdout.close()
            end = metric(prefill, "kvwire_kv_transfer_held_requests_total")
            self.assertEqual(end, len(PROMPTS))
            for server in (prefill, decode):
                self.assertEqual(server.end()[0], 0)

    def test_prefill_engine_gone(self):
        """P51: when the prefill engine is gone its requests are computed by the decode engine, with one warning"""
        with Server("--port", "0", *transfer("kv_producer"), events=None) as prefill, \
                Server("--port", "0", *transfer("kv_consumer"), events=None) as decode:
            params = [prefill.complete(prompt, max_tokens=1, kv_transfer_params=REMOTE_DECODE)["kv_transfer_params"]
                      for prompt in PROMPTS]
            prefill.process.kill()
            prefill.process.wait()
            for prompt, given in zip(PROMPTS, params):
                answer = decode.complete(prompt, kv_transfer_params=given)
                self.assertEqual(text_of(answer), text_of(decode.complete(prompt)))
            self.assertGreater(metric(decode, "kvwire_kv_transfer_failed_total"), 0)
            code, log = decode.end()
            self.assertEqual(code, 0)
            self.assertEqual(log.count("could not be fetched"), 1, log)

    def test_hold_time(self):
        with Server("--port", "0", *transfer("kv_both", engine_id="mine"), "--kv-transfer-hold", "0.001",
                    "--kv-transfer-host", "prefill.example", events=None) as server:
            params = server.complete(max_tokens=1, kv_transfer_params=REMOTE_DECODE)["kv_transfer_params"]
            self.assertEqual((params["remote_engine_id"], params["remote_host"]), ("mine", "prefill.example"))
            end = time.monotonic() + WATCHDOG
            while metric(server, "kvwire_kv_transfer_blocks_held") > 0:
                self.assertLess(time.monotonic(), end)
            self.assertIn("nobody fetched the blocks of request", server.end()[1])

    def test_keys_one_by_one(self):
        flags = ["--kv-transfer-config.kv_connector", "NixlConnector", "--kv_transfer_config.kv_role=kv_both",
                 "--kv-transfer-config.kv_connector_extra_config.num_threads", "4", "--kv-transfer-config.kv_rank", "0"]
        with Server("--port", "0", *flags, events=None) as server:
            self.assertIn("kv_transfer_params", server.complete(max_tokens=1, kv_transfer_params=REMOTE_DECODE))
            self.assertNotIn("--kv-transfer-config", server.end()[1])

    def test_other_connectors(self):
        """a connector that is not offered has no effect, and a line says so"""
        for config in ('{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}', "{}"):
            with Server("--port", "0", "--kv-transfer-config", config, events=None) as server:
                status, body = server.ask("POST", "/v1/completions", {"prompt": "x", "kv_transfer_params": REMOTE_DECODE})
                self.assertEqual(status, 400)
                self.assertIn("--kv-transfer-config", body)
                self.assertIn("--kv-transfer-config", server.end()[1])

    def test_none(self):
        """vLLM's None is no configuration"""
        with Server("--port", "0", "--kv-transfer-config", "None", events=None) as server:
            self.assertNotIn("--kv-transfer-config", server.end()[1])

    def test_bad_flags(self):
        nixl = '{"kv_connector": "NixlConnector"'
        for arguments, part in (
                (["--kv-transfer-config", "x"], "--kv-transfer-config: the value is no JSON"),
                (["--kv-transfer-config", nixl + "}"], "--kv-transfer-config: kv_role is missing"),
                (["--kv-transfer-config", nixl + ', "kv_role": "both"}'], 'kv_role is "both", expected "kv_producer"'),
                (["--kv-transfer-config", nixl + ', "kv_role": "kv_both", "nope": 1}'], "nope"),
                (["--kv-transfer-config", nixl + ', "kv_role": "kv_both", "kv_load_failure_policy": "fail"}'],
                 "kv_load_failure_policy"),
                (["--kv-transfer-config.nope", "1"], "nope"),
                (["--kv-transfer-allow", "a b"], "--kv-transfer-allow"),
                (["--kv-transfer-allow", "host:0"], "--kv-transfer-allow"),
                (["--kv-transfer-allow", "host:"], "--kv-transfer-allow"),
                (["--kv-transfer-allow", "[::1"], "--kv-transfer-allow"),
                (["--kv-transfer-hold", "-1"], "--kv-transfer-hold")):
            with self.subTest(arguments=arguments):
                code, message = refused("--port", "0", *arguments, events=None)
                self.assertNotEqual(code, 0)
                self.assertIn(part, message)

    def test_allowed_hosts(self):
        with Server("--port", "0", *transfer("kv_both"), "--kv-transfer-allow", "prefill:8000", "[::1]:9", "127.0.0.1",
                    events=None) as server:
            params = server.complete(max_tokens=1, kv_transfer_params=REMOTE_DECODE)["kv_transfer_params"]
            self.assertEqual(server.complete(kv_transfer_params=params)["usage"]["prompt_tokens_details"]["cached_tokens"], 48)
            for host, port in (("prefill", 8001), ("::1", 8), ("localhost", 8000)):
                body = {"prompt": "x", "kv_transfer_params": {**params, "remote_host": host, "remote_port": port}}
                status, message = server.ask("POST", "/v1/completions", body)
                self.assertEqual(status, 400)
                self.assertIn("one of --kv-transfer-allow: prefill with port 8000, ::1 with port 9, 127.0.0.1", message)


if __name__ == "__main__":
    unittest.main()
