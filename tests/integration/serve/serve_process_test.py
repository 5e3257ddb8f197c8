#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvwire serve` as its users meet it: a process, its flags, its output, its end.

Usage: serve_process_test.py KVWIRE. Every port is 0 and read back."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

KVWIRE = sys.argv.pop()
MODEL_CONFIGS = pathlib.Path(__file__).resolve().parents[3] / "docs" / "model-configs"
WATCHDOG = 20
EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0",
          "topic": "kv-events", "kvwire": {"mode": "bind"}}
PROMPT = "Once upon a time there was a king who had three sons."  # three full blocks of 16


def command(*arguments, events=EVENTS):
    config = [] if events is None else ["--kv-events-config", json.dumps(events)]
    return [KVWIRE, "serve", *arguments, *config]


class Server:
    """A running server; killed at the end if it still runs."""

    def __init__(self, *arguments, events=EVENTS, environment=None):
        self.process = subprocess.Popen(command(*arguments, events=events), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env={**os.environ, **(environment or {})})
        self.sources = []
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()
        for line in self.process.stdout:
            if line.startswith("events of rank"):
                self.sources.append(re.fullmatch(r"events of rank (\d+) on (\S+), replay (\S+), topic \"(.*)\"\n", line).groups())
            elif line.startswith("serving on "):
                self.port = int(line.rsplit(":", 1)[1])
                return
        raise AssertionError("the server did not start: " + self.text())

    def text(self):
        self.reader.join(WATCHDOG)
        return "".join(self.log)

    def ask(self, method, path, body=None, headers={}):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WATCHDOG)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def complete(self, prompt=PROMPT, **fields):
        status, body = self.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 4, **fields})
        assert status == 200, body
        return json.loads(body)

    def end(self, signum=signal.SIGTERM):
        self.process.send_signal(signum)
        code = self.process.wait(WATCHDOG)
        self.process.stdout.close()
        return code, self.text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.reader.join()
        self.process.stderr.close()


def refused(*arguments, events=EVENTS, environment=None):
    """The exit code and message of a server that must not start."""
    done = subprocess.run(command(*arguments, events=events), capture_output=True, text=True, timeout=WATCHDOG,
                          env={**os.environ, **(environment or {})})
    assert "serving on" not in done.stdout, done.stdout
    return done.returncode, done.stderr


def port_of(endpoint):
    return endpoint.rsplit(":", 1)[1]


class ServeTest(unittest.TestCase):
    def test_quick_start(self):
        """the first request announces its blocks to a watcher, the second one reports its cached tokens"""
        with Server("--port", "0") as server:
            ((_, endpoint, replay, topic),) = server.sources
            self.assertEqual(topic, "kv-events")
            tap = subprocess.Popen([KVWIRE, "tap", "--endpoint", endpoint, "--replay-endpoint", replay, "--check", "--removals",
                                    "exact", "--json"], stdout=subprocess.PIPE, text=True)
            self.assertEqual(server.complete()["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            for line in tap.stdout:
                if "BlockStored" in line:
                    break
            self.assertEqual(server.complete()["usage"]["prompt_tokens_details"]["cached_tokens"], 48)
            server.complete(vllm_xargs={"kv_cache_report_mode": "full"})
            for line in tap.stdout:
                if "BlockStored" in line:
                    break
            tap.send_signal(signal.SIGINT)
            self.assertEqual(tap.wait(WATCHDOG), 0)
            tap.stdout.close()
            self.assertEqual(server.end()[0], 0)

    def test_streaming(self):
        with Server("--port", "0", events=None) as server:
            whole = server.complete(max_tokens=30)["choices"][0]["text"]
            status, body = server.ask("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 30, "stream": True})
            self.assertEqual(status, 200)
            events = body.split("\n\n")
            self.assertEqual(events[-2:], ["data: [DONE]", ""])
            self.assertEqual("".join(json.loads(event[6:])["choices"][0]["text"] for event in events[:-2]), whole)

    def test_manifest_of_vllm(self):
        """E4: a command line written for vLLM runs unchanged; what has no effect is listed in one line"""
        arguments = ["some/model", "--served-model-name", "a", "b", "--port", "0", "--dtype", "bfloat16", "--trust-remote-code",
                     "--gpu-memory-utilization=0.9", "--tensor_parallel_size", "8", "--no-enable-log-requests", "-pp", "2",
                     "--enforce-eager", "--max-model-len", "8k", "--num_gpu_blocks_override", "500", "--block-size", "32",
                     "--disable-log-requests", "--max-num-seqs=4", "--enable-prefix-caching", "--seed", "1",
                     "--tokenizer", "some/tokenizer", "--hf-overrides", '{"a": [1, 2]}', "--allowed-origins", '["*", "x"]',
                     "--kv_events_config.buffer_steps", "5k", "--prefix-caching-hash-algo", "sha256_cbor"]
        with Server(*arguments) as server:
            models = json.loads(server.ask("GET", "/v1/models")[1])["data"]
            self.assertEqual([model["id"] for model in models], ["a", "b"])
            self.assertEqual(models[0]["max_model_len"], 8000)
            metrics = server.ask("GET", "/metrics")[1]
            self.assertIn('num_gpu_blocks="500"', metrics)
            self.assertIn('block_size="32"', metrics)
            code, log = server.end()
            self.assertEqual(code, 0)
            (line,) = [line for line in log.splitlines() if "without effect" in line]
            for flag in ("--dtype", "--trust-remote-code", "--gpu-memory-utilization", "--tensor-parallel-size", "--seed",
                         "--no-enable-log-requests", "--pipeline-parallel-size", "--hf-overrides"):
                self.assertIn(flag, line)
            self.assertNotIn("--max-model-len", line)
            self.assertEqual(len([line for line in log.splitlines() if "some/tokenizer" in line]), 1)

    def test_lower_tiers_are_refused_by_flag(self):
        with tempfile.TemporaryDirectory() as folder:
            for arguments, words in (
                    (["--disk-blocks", "8"], "--disk-blocks is 8, but there is no --disk-dir; allowed: both, or neither"),
                    (["--disk-dir", folder], f'--disk-dir is "{folder}", but --disk-blocks is 0; allowed: both, or neither'),
                    (["--host-blocks", "8", "--no-enable-prefix-caching"],
                     "--host-blocks is 8; allowed: 0, as --no-enable-prefix-caching is given"),
                    (["--disk-blocks", "8", "--disk-dir", folder, "--no-enable-prefix-caching"],
                     "--disk-blocks is 8; allowed: 0, as --no-enable-prefix-caching is given"),
                    (["--reset-lower-tiers", "drop"], '--reset-lower-tiers is "drop"; allowed: clear, keep'),
                    (["--disk-blocks", "8", "--disk-dir", "/dev/null/x"], 'disk_dir is "/dev/null/x/rank-0": it cannot be made: ')):
                with self.subTest(arguments):
                    code, message = refused("--port", "0", *arguments)
                    self.assertEqual(code, 1)
                    self.assertIn(words, message)

    def test_each_engine_has_a_directory_of_its_own(self):
        """a directory in use is refused; ranks and engines of one process do not share one"""
        with tempfile.TemporaryDirectory() as folder:
            disk = ["--port", "0", "--disk-blocks", "8", "--disk-dir", folder]
            with Server(*disk, "-dp", "2", "-tp", "3") as server:
                self.assertEqual(sorted(os.listdir(folder)), ["rank-0", "rank-1"])
                code, message = refused(*disk)
                self.assertEqual(code, 1)
                self.assertIn(f'disk_dir is "{folder}/rank-0": another engine uses it; allowed: a directory for each engine', message)
                code, log = server.end()
                self.assertEqual(code, 0)
                self.assertNotIn("without effect", log)
            with Server(*disk, "--instances", "2"):
                self.assertEqual(sorted(os.listdir(folder)), ["instance-0", "instance-1", "rank-0", "rank-1"])
                self.assertEqual(os.listdir(f"{folder}/instance-1/rank-0"), ["kvwire.lock"])
            # The server was killed, which leaves its files; the next one takes over.
            with Server(*disk, "--instances", "2"):
                pass
            open(f"{folder}/rank-0/notes.txt", "w").close()
            self.assertIn('it holds "notes.txt", which is no regular file of blocks', refused(*disk)[1])

    def test_flags_of_vllm_in_all_spellings(self):
        """E4: short flags, levels, and keys of JSON flags are accepted where they can have no effect"""
        arguments = ["-O3", "-O", "2", "-O=1", "-O.mode=3", "-O.cudagraph_mode", "FULL", "-cc.mode", "3", "-cc={}",
                     "--compilation-config.pass_config.fuse=true", "--hf-overrides.a.b", "1", "--hf_overrides.c_d=2",
                     "--kv-transfer-config.kv_connector", "X", "--speculative-config.method=ngram",
                     "--additional-config.x+", "1", "--rope-scaling.factor", "2", "-asc", "2", "-ep", "--max-model-len", "auto"]
        with Server("--port", "0", *arguments) as server:
            self.assertEqual(json.loads(server.ask("GET", "/v1/models")[1])["data"][0]["max_model_len"], 1048576)
            (line,) = [line for line in server.end()[1].splitlines() if "without effect" in line]
            for flag in ("--optimization-level", "--compilation-config", "--hf-overrides", "--kv-transfer-config",
                         "--speculative-config", "--additional-config", "--rope-scaling", "--api-server-count",
                         "--enable-expert-parallel", "--max-model-len auto (the default, 1048576)"):
                self.assertIn(flag, line)
        with Server("--port", "0", "--max-model-len", "-1") as server:
            self.assertEqual(json.loads(server.ask("GET", "/v1/models")[1])["data"][0]["max_model_len"], 1048576)
            self.assertIn("--max-model-len -1 (the default, 1048576)", server.end()[1])
        # The last one counts.
        for arguments, length in ((["auto", "8k"], 8000), (["8k", "auto"], 1048576)):
            flags = [part for value in arguments for part in ("--max-model-len", value)]
            with Server("--port", "0", *flags) as server:
                self.assertEqual(json.loads(server.ask("GET", "/v1/models")[1])["data"][0]["max_model_len"], length)
                self.assertEqual("--max-model-len" in server.end()[1], length == 1048576)

    def test_flags_of_vllm_that_are_refused(self):
        """E4: what would change the behaviour is refused by name, with the reason"""
        for arguments, parts in (
                (["--headless"], ["--headless", "HTTP"]),
                (["--middleware", "my.module.Auth"], ["--middleware", "Python"]),
                (["-dpn", "1"], ["--data-parallel-rank", "this process"]),
                (["-dpr", "1"], ["--data-parallel-start-rank", "this process"]),
                (["-dpl=1"], ["--data-parallel-size-local", "this process"]),
                (["--model", "a", "b"], ['"a"', '"b"', "--model"]),
                (["b", "--model", "a"], ['"a"', '"b"', "--model"]),
                (["--dtype.x", "1"], ["--dtype.x"]),
                (["-Ox"], ["-Ox"]),
                (["--max-model-len", "-2"], ["--max-model-len", '"-2"', "auto"])):
            with self.subTest(arguments=arguments):
                code, message = refused("--port", "0", *arguments, events=None)
                self.assertNotEqual(code, 0)
                for part in parts:
                    self.assertIn(part, message)
        with Server("a", "--model", "a", "--port", "0") as server:
            self.assertEqual(json.loads(server.ask("GET", "/v1/models")[1])["data"][0]["id"], "a")

    def test_faults_without_effect(self):
        """a script that can have no effect is said so once, at the start"""
        script = {"faults": [{"kind": "reset", "at": 1}, {"kind": "drop", "every": 2}]}
        off, null = None, {**EVENTS, "publisher": "null"}
        for events, part in ((off, 'faults[0].kind: "reset"'), (null, 'faults[1].kind: "drop"'), (EVENTS, None)):
            with self.subTest(events=events):
                with Server("--port", "0", "--instances", "2", "--faults", json.dumps(script), events=events) as server:
                    lines = [line for line in server.end()[1].splitlines() if "--faults" in line]
                    self.assertEqual(len(lines), 0 if part is None else 1)
                    for line in lines:
                        self.assertIn(part, line)
                        self.assertIn("warning", line)

    def test_events_off(self):
        with Server("--port", "0", events=None) as server:
            self.assertEqual(server.sources, [])
            self.assertEqual(json.loads(server.ask("GET", "/kv_event_sources")[1])["sources"], [])
            self.assertEqual(len([line for line in server.end()[1].splitlines() if "events are off" in line]), 1)

    def test_bad_flags(self):
        """E4: unknown flags and keys, and values that are not allowed, are named"""
        for arguments, events, part in (
                (["--enable-kv-cache-events"], None, "--enable-kv-cache-events"),
                (["--kv-events-publisher=zmq"], None, "--kv-events-publisher"),
                (["--kv-events-config.nope", "1"], None, "nope"),
                (["--port", "65536"], None, "--port"),
                (["--port", "x"], None, "--port"),
                (["--host", "no such host"], None, "--host"),
                (["--host", ""], None, "--host"),
                (["--served-model-name", ""], None, "--served-model-name"),
                (["--served-model-name", "a", ""], None, "--served-model-name"),
                (["--served-model-name", "a", "b\udcff"], None, r'--served-model-name: "b\xff"; allowed: UTF-8'),
                (["--model", "b\udcff"], None, r'--model: "b\xff"; allowed: UTF-8'),
                (["b\udcff"], None, r'MODEL: "b\xff"; allowed: UTF-8'),
                (["--lora-modules", "tuned\udcff=path"], None, r'--lora-modules: "tuned\xff=path"; allowed: UTF-8'),
                (["--lora-modules", "tuned=path\udcff"], None, r'--lora-modules: "tuned=path\xff"; allowed: UTF-8'),
                (["--lora-modules", "tuned"], None, "--lora-modules"),
                (["--lora-modules", "=path"], None, "--lora-modules"),
                (["--lora-modules", '{"name": "a"}'], None, "--lora-modules"),
                (["--lora-modules", '{"name": "a", "path": "b", "nope": 1}'], None, "--lora-modules"),
                (["--lora-modules", "a=x", "a=y"], None, "a=y"),
                (["--lora-modules", "kvwire-sim=x"], None, "kvwire-sim=x"),
                (["--model-config", "no/such/file"], None, "--model-config"),
                (["--max-model-len", "8x"], None, "--max-model-len"),
                (["--num-blocks", "1"], None, "--num-blocks"),
                (["--num-gpu-blocks-override", "1"], None, "--num-gpu-blocks-override"),
                (["--data-parallel-size", "0"], None, "--data-parallel-size"),
                (["--data-parallel-start-rank", "8"], None, "--data-parallel-start-rank"),
                (["--ssl-keyfile", "key.pem"], None, "TLS"),
                (["--prefix-caching-hash-algo", "md5"], None, "--prefix-caching-hash-algo"),
                (["--tokenizer", "https://127.0.0.1"], None, "--tokenizer"),
                (["--api-key", "with space"], None, "--api-key"),
                ([], {"enable_kv_cache_events": True, "nope": 1}, "nope"),
                ([], {"enable_kv_cache_events": True, "endpoint": "udp://*:1"}, "udp://*:1")):
            with self.subTest(arguments=arguments, events=events):
                code, message = refused(*([] if "--port" in arguments else ["--port", "0"]), *arguments, events=events)
                self.assertNotEqual(code, 0)
                self.assertIn(part, message)

    def test_adapters(self):
        """D21: --lora-modules in both of vLLM's forms: adapters that requests may name, with ids in the order of the flag"""
        with Server("base", "--port", "0", "--enable-lora", "--lora-modules", "plain=/a=b",
                    '{"name": "full", "path": "/c", "base_model_name": "other"}', "--max-loras", "4") as server:
            models = json.loads(server.ask("GET", "/v1/models")[1])["data"]
            self.assertEqual([(model["id"], model["root"], model["parent"]) for model in models],
                             [("base", "base", None), ("plain", "/a=b", "base"), ("full", "/c", "other")])
            tap = self.tap(server)
            for model in ("base", "full", "plain"):
                self.assertEqual(server.complete(model=model)["model"], model)
            stored = self.stored(tap, 3)
            self.assertEqual([(event.get("lora_id"), event.get("lora_name")) for event in stored],
                             [(None, None), (2, "full"), (1, "plain")])
            self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": "x", "model": "none"})[0], 404)

    def test_hash_roots(self):
        """F1: processes agree on hashes, but without a seed for xxhash, of which they warn once while events are on"""
        def run(algorithm, seed, events=EVENTS):
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
            if seed is not None:
                environment["PYTHONHASHSEED"] = seed
            with Server("--port", "0", "--prefix-caching-hash-algo", algorithm, events=events, environment=environment) as server:
                told = json.loads(server.ask("GET", "/kv_event_sources")[1])["hash"]
                return told, len([line for line in server.end()[1].splitlines() if "random" in line])

        for algorithm, seed, source, text in (("sha256_cbor", None, "default", "vllm-none-hash"), ("sha256", "0", "environment", "0"),
                                              ("xxhash_cbor", "0", "environment", "0"), ("xxhash", None, "random", None)):
            with self.subTest(algorithm=algorithm, seed=seed):
                (one, warnings), (other, _) = run(algorithm, seed), run(algorithm, seed)
                self.assertEqual((one["algorithm"], one["seed_source"], one["seed"]), (algorithm, source, text))
                self.assertEqual(warnings, 1 if source == "random" else 0)
                self.assertEqual(one["root"] == other["root"], source != "random")
        self.assertEqual(run("xxhash", None, events=None)[1], 0)

    def test_hash_roots_of_a_trace(self):
        """F1: replay-trace warns in the same way"""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        with tempfile.TemporaryDirectory() as directory:
            trace = pathlib.Path(directory, "trace.jsonl")
            trace.write_text('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n')
            for seed, events, warnings in ((None, EVENTS, 1), ("0", EVENTS, 0), (None, {}, 0)):
                done = subprocess.run([KVWIRE, "replay-trace", str(trace), "--prefix-caching-hash-algo", "xxhash",
                                       "--kv-events-config", json.dumps(events)], capture_output=True, text=True, timeout=WATCHDOG,
                                      env={**environment, **({} if seed is None else {"PYTHONHASHSEED": seed})})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stderr.count("random"), warnings, done.stderr)

    def test_hybrid(self):
        """a model with several KV-cache groups: the cache changes no output, and usage has the tokens of the lookup"""
        def conversation(server, looks):
            answers, prompt = [], "Once upon a time there was a king. " * 60
            for turn in range(6):
                looked = json.loads(server.ask("POST", "/kv/lookup", {"prompt": prompt})[1])["ranks"][0] if looks else None
                answer = server.complete(prompt, max_tokens=40)
                answers.append(answer["choices"][0]["text"])
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                if looks:
                    self.assertEqual(cached, looked["prefix_tokens"], turn)
                    self.assertEqual(len(looked["blocks"][0]["copies_by_group"]), groups)
                    hits.append(cached)
                prompt += answers[-1] + " And then? "
            return answers

        for name, groups in (("sliding-window-hybrid", 3), ("mamba-hybrid", 2)):
            with self.subTest(model=name):
                config = ["--port", "0", "--dev", "--model-config", str(MODEL_CONFIGS / f"{name}.json")]
                hits = []
                with Server(*config) as server:
                    tap = self.tap(server)
                    cached = conversation(server, looks=True)
                    stored = self.stored(tap, groups)
                    self.assertEqual({event["group_idx"] for event in stored}, set(range(groups)))
                    page = json.loads(server.ask("GET", "/dev/pool")[1])
                    self.assertGreater(page["blocks"].count("c"), 100)
                with Server(*config, "--no-enable-prefix-caching") as server:
                    self.assertEqual(conversation(server, looks=False), cached)
                self.assertEqual(hits[0], 0)
                self.assertTrue(all(hit > 1000 for hit in hits[1:]), hits)

    def test_tool_conversation(self):
        """a conversation in which tools were called is accepted as the OpenAI client sends it, and goes on in the cache"""
        with Server("--port", "0", events=None) as server:
            call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
            messages = [{"role": "user", "content": "How is the weather in Bonn?"},
                        {"role": "assistant", "content": None, "tool_calls": [call]},
                        {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
            for more, cached in (([], 0), ([{"role": "user", "content": "And tomorrow?"}], 96)):
                status, body = server.ask("POST", "/v1/chat/completions", {"messages": messages + more, "max_tokens": 4})
                self.assertEqual(status, 200, body)
                self.assertEqual(json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"], cached)

    def test_b3_ports(self):
        """B3: a second server on a port that is taken fails at start on whichever rank, naming flag, socket and address"""
        with Server("--port", "0") as server:
            code, message = refused("--port", str(server.port))
            self.assertEqual(code, 1)
            self.assertIn(f"--port {server.port}", message)
            self.assertIn(f"127.0.0.1:{server.port}", message)
            ((_, endpoint, replay, _),) = server.sources
            taken = {"PUB": ("endpoint", endpoint), "ROUTER": ("replay_endpoint", replay),
                     "HTTP": ("endpoint", f"tcp://127.0.0.1:{server.port}")}
            for socket, (key, address) in taken.items():
                with self.subTest(socket=socket):
                    # Also when it is the last of several ranks that cannot have its port.
                    for ranks in (1, 3):
                        first = int(port_of(address)) - ranks + 1
                        config = {**EVENTS, key: f"tcp://127.0.0.1:{first}"}
                        code, message = refused("--port", "0", "--data-parallel-size", str(ranks), events=config)
                        self.assertEqual(code, 1)
                        self.assertIn("--kv-events-config", message)
                        self.assertIn("ROUTER" if socket == "ROUTER" else "PUB", message)
                        if ranks == 1:
                            self.assertIn(address, message)
            self.assertEqual(server.complete()["usage"]["completion_tokens"], 4)
            self.assertEqual(server.end()[0], 0)

    def test_four_ranks(self):
        with Server("--port", "0", "-dp", "4") as server:
            self.assertEqual([int(source[0]) for source in server.sources], [0, 1, 2, 3])
            self.assertEqual(len({port_of(source[i]) for source in server.sources for i in (1, 2)}), 8)
            listed = json.loads(server.ask("GET", "/kv_event_sources")[1])["sources"]
            self.assertEqual([(str(source["data_parallel_rank"]), source["endpoint"], source["replay_endpoint"], source["topic"])
                              for source in listed], server.sources)

    def test_g6_only_data_parallel_ranks_publish(self):
        with Server("--port", "0", "-dp", "2", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2") as server:
            self.assertEqual([int(source[0]) for source in server.sources], [0, 1])
            events = {int(port_of(source[i])) for source in server.sources for i in (1, 2)}
            self.assertEqual(len(events), 4)
            self.assertEqual(self.listening_ports(server.process.pid), events | {server.port})
            server.process.kill()
            server.process.wait(WATCHDOG)
            for port in events | {server.port}:
                with self.assertRaises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), WATCHDOG)

    def test_fleet(self):
        process = subprocess.Popen(command("--port", "0", "--instances", "3", "--data-parallel-size", "2"), stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        events, ports = [], []
        for line in process.stdout:
            if line.startswith("events of rank"):
                events += re.findall(r"tcp://\S+?(?=[, ])", line)
            elif line.startswith("serving on "):
                ports.append(int(line.rsplit(":", 1)[1]))
            elif "engines started" in line:
                self.assertRegex(line, r"^3 engines started in [\d.]+ s; [\d.]+ MB of memory each\n$")
                break
        self.assertEqual(len(set(events)), 3 * 2 * 2)
        self.assertEqual(len(set(ports)), 3)
        hits = []
        for port in (ports[0], ports[0], ports[1]):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WATCHDOG)
            with contextlib.closing(connection):
                connection.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": 1}), {"X-data-parallel-rank": "1"})
                usage = json.loads(connection.getresponse().read())["usage"]
                hits.append(usage["prompt_tokens_details"]["cached_tokens"])
        self.assertEqual(hits, [0, 48, 0])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(WATCHDOG), 0)
        process.stdout.close()

    def test_paths_that_dev_opens(self):
        """without --dev the paths that it opens are not there, and the answer says so"""
        with Server("--port", "0", events=None) as server:
            for method, path in (("GET", "/kv/state"), ("POST", "/kv/lookup"), ("GET", "/dev/pool"), ("POST", "/dev/faults")):
                status, body = server.ask(method, path, {} if method == "POST" else None)
                self.assertEqual(status, 404)
                self.assertIn(f'there is no path "{path}" without --dev', json.loads(body)["error"]["message"])
            self.assertNotIn("--dev", server.ask("GET", "/kvx")[1])
        with Server("--port", "0", "--dev", events=None) as server:
            self.assertEqual(server.ask("GET", "/kv/state")[0], 200)
            self.assertEqual(json.loads(server.ask("GET", "/dev/none")[1])["error"]["message"], 'there is no path "/dev/none"')

    def test_end_with_running_requests(self):
        """SIGTERM lets running requests finish, answers no new ones, and publishes what was announced"""
        with Server("--port", "0", "--decode-us-per-request", "20000") as server:
            answers = []
            client = threading.Thread(target=lambda: answers.append(server.complete(max_tokens=40)))
            client.start()
            self.wait_for_running(server)
            code, _ = server.end()
            client.join(WATCHDOG)
            self.assertEqual(code, 0)
            self.assertEqual(answers[0]["usage"]["completion_tokens"], 40)

    def test_end_in_time(self):
        """what does not finish within --shutdown-timeout is answered with an error"""
        with Server("--port", "0", "--decode-us-per-request", "1000000", "--shutdown-timeout", "0.1") as server:
            answers = []
            client = threading.Thread(
                target=lambda: answers.append(server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 500})))
            client.start()
            self.wait_for_running(server)
            code, log = server.end(signal.SIGINT)
            client.join(WATCHDOG)
            self.assertEqual(code, 0)
            self.assertIn("1 requests did not finish", log)
            status, body = answers[0]
            self.assertEqual(status, 503)
            self.assertEqual(json.loads(body)["error"]["code"], 503)

    def test_end_during_start(self):
        """a signal while engines are still being made ends the start"""
        for fleet in (["--instances", "1000"], ["--data-parallel-size", "64"]):
            with self.subTest(fleet=fleet):
                process = subprocess.Popen(command("--port", "0", "--num-blocks", "200000", *fleet, events=None),
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for line in process.stderr:
                    if "events are off" in line:
                        break
                process.terminate()
                output, _ = process.communicate(timeout=WATCHDOG)
                self.assertEqual(process.returncode, 0)
                self.assertNotIn("serving on", output)

    def test_second_signal_kills(self):
        with Server("--port", "0", "--decode-us-per-request", "1000000", "--shutdown-timeout", "1000") as server:
            client = threading.Thread(target=lambda: self.swallow(server))
            client.start()
            self.wait_for_running(server)
            server.process.terminate()
            self.wait(lambda: self.is_closed(server))
            self.wait(lambda: server.process.terminate() or server.process.poll() is not None)
            self.assertEqual(server.process.wait(WATCHDOG), -signal.SIGTERM)
            client.join(WATCHDOG)

    def test_tokenizer(self):
        """a tokenize service, here another server, stands in for the bytes; without it requests get 503"""
        with Server("--port", "0", events=None) as service:
            with Server("--port", "0", "--tokenizer", f"http://127.0.0.1:{service.port}", events=None) as server:
                for prompt in (PROMPT, "gr\u00fc\u00df dich"):
                    self.assertEqual(server.complete(prompt)["choices"], service.complete(prompt)["choices"])
                self.assertEqual(server.complete(stop=["zz"], max_tokens=20)["usage"]["prompt_tokens"], len(PROMPT))
                service.end()
                status, body = server.ask("POST", "/v1/completions", {"prompt": PROMPT})
                self.assertEqual(status, 503)
                self.assertIn(str(service.port), json.loads(body)["error"]["message"])
                self.assertRegex(server.ask("GET", "/metrics")[1], r'kvwire_requests_refused_total\{[^}]*reason="tokenizer"\} 1\n')

    def test_keys(self):
        with Server("--port", "0", events=None, environment={"VLLM_API_KEY": "sec%72et"}) as server:
            self.assertEqual(server.ask("GET", "/v1/models")[0], 401)
            self.assertEqual(server.ask("GET", "/v1/models", headers={"Authorization": "Bearer sec%72et"})[0], 200)
            self.assertEqual(server.ask("GET", "/health")[0], 200)

    def tap(self, server):
        """the server's events from the first one on, as they come"""
        ((_, endpoint, replay, _),) = server.sources
        process = subprocess.Popen([KVWIRE, "tap", "--endpoint", endpoint, "--replay-endpoint", replay, "--json"],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close()))
        return process

    @staticmethod
    def stored(tap, count):
        stored = []
        for line in tap.stdout:
            stored += [event for event in json.loads(line).get("events", []) if event["type"] == "BlockStored"]
            if len(stored) >= count:
                return stored
        raise AssertionError(f"the tap ended with {len(stored)} events")

    def wait(self, condition):
        end = time.monotonic() + WATCHDOG
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def wait_for_running(self, server):
        self.wait(lambda: re.search(r"vllm:num_requests_running\S* 1\b", server.ask("GET", "/metrics")[1]))

    @staticmethod
    def listening_ports(process):
        sockets = set()
        for path in pathlib.Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                sockets.add(os.readlink(path))
        listening = "0A"
        ports = set()
        for line in pathlib.Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
            _, address, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == listening and f"socket:[{inode}]" in sockets:
                ports.add(int(address.rsplit(":", 1)[1], 16))
        return ports

    @staticmethod
    def is_closed(server):
        try:
            server.ask("GET", "/health")
        except OSError:
            return True
        return False

    @staticmethod
    def swallow(server):
        with contextlib.suppress(OSError, http.client.HTTPException):
            server.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 500})


if __name__ == "__main__":
    unittest.main()
