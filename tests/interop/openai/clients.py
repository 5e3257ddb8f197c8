#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The openai client against `kvwire serve`: every kind of answer, then many clients at once, whose answers must be those of a server
without a prefix cache, while `kvwire tap --against` compares stream and engine. usage: clients.py KVWIRE [--clients N] [--seconds S]
[--agreements N]"""
import argparse
import concurrent.futures
import json
import random
import re
import signal
import subprocess
import sys
import time

import openai

MODEL = "kvwire-sim"
EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0", "topic": "kv-events",
          "kvwire": {"mode": "bind"}}


class Server:
    """`kvwire serve` on ports that the system chose."""

    def __init__(self, kvwire, *flags):
        self.process = subprocess.Popen([kvwire, "serve", MODEL, "--port", "0", *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        self.endpoint = self.replay_endpoint = None
        for line in self.process.stdout:
            if events := re.match(r"events of rank 0 on (\S+), replay (\S+),", line):
                self.endpoint, self.replay_endpoint = events.groups()
            if serving := re.match(r"serving on (\S+)", line):
                self.url = serving.group(1)
                return
        sys.exit("the server did not start")

    def client(self):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(30) != 0:
            sys.exit("the server did not end cleanly")


def expect(condition, what):
    if not condition:
        sys.exit(f"openai: {what}")


def every_kind(client):
    expect(MODEL in [model.id for model in client.models.list()], "the model is not listed")
    prompt = "It was the best of times, it was the worst of times. " * 3
    first = client.completions.create(model=MODEL, prompt=prompt, max_tokens=12)
    again = client.completions.create(model=MODEL, prompt=prompt, max_tokens=12)
    expect(first.choices[0].text == again.choices[0].text and len(first.choices[0].text) == 12, "a repeated prompt has another answer")
    expect(first.usage.prompt_tokens_details.cached_tokens == 0, "the first answer used the cache")
    expect(again.usage.prompt_tokens_details.cached_tokens > 100, "the second answer did not use the cache")
    full = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1,
                                     extra_body={"vllm_xargs": {"kv_cache_report_mode": "full"}})
    expect(full.choices[0].finish_reason == "length", "an answer with a report has no end")
    tokens = client.completions.create(model=MODEL, prompt=list(prompt.encode()), max_tokens=12)
    expect(tokens.choices[0].text == first.choices[0].text, "token ids and text differ")
    pieces = list(client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, stream=True, stream_options={"include_usage": True}))
    expect("".join(p.choices[0].text for p in pieces if p.choices) == first.choices[0].text, "a streamed answer differs")
    expect(pieces[-1].usage.completion_tokens == 12, "a stream has no usage at its end")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Who are you?"}]}]
    chat = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=9)
    expect(chat.choices[0].message.role == "assistant" and len(chat.choices[0].message.content) == 9, "a chat is not answered")
    pieces = list(client.chat.completions.create(model=MODEL, messages=messages, max_tokens=9, stream=True))
    expect("".join(p.choices[0].delta.content or "" for p in pieces) == chat.choices[0].message.content, "a streamed chat differs")
    for wrong in ({"model": "other"}, {"max_tokens": -1}, {"prompt": ""}):
        try:
            client.completions.create(**{"model": MODEL, "prompt": "x", "max_tokens": 1, **wrong})
        except (openai.BadRequestError, openai.NotFoundError) as error:
            expect(next(iter(wrong)) in str(error), f"the error for {wrong} does not name it")
        else:
            expect(False, f"{wrong} is accepted")


def prompts():
    """Prompts that share beginnings, with how many tokens to ask for."""
    shapes = random.Random(1)
    roots = ["".join(shapes.choices("abcdefgh ", k=200)) for _ in range(6)]
    return [(shapes.choice(roots)[:shapes.randrange(20, 200)] + str(shapes.randrange(30)), shapes.randrange(1, 24)) for _ in range(200)]


def many_clients(server, expected, clients, seconds):
    """Every client asks on until the time is over; returns how many answers came, all of them right."""
    end = time.monotonic() + seconds

    def ask(seed):
        client, choice, answers = server.client(), random.Random(seed), 0
        while time.monotonic() < end:
            (prompt, length), text = choice.choice(expected)
            if choice.random() < 0.5:
                answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=length).choices[0].text
            else:
                answer = "".join(piece.choices[0].text for piece in
                                 client.completions.create(model=MODEL, prompt=prompt, max_tokens=length, stream=True))
            expect(answer == text, f"{prompt!r} is answered {answer!r}, without a cache {text!r}")
            answers += 1
        return answers

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(ask, range(clients)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kvwire")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--agreements", type=int, default=1000, help="how often tap must have found stream and engine equal")
    args = parser.parse_args()

    plain = Server(args.kvwire, "--no-enable-prefix-caching")
    client = plain.client()
    expected = [((prompt, length), client.completions.create(model=MODEL, prompt=prompt, max_tokens=length).choices[0].text)
                for prompt, length in prompts()]
    plain.stop()

    # So few blocks that they are evicted, and requests preempted.
    server = Server(args.kvwire, "--dev", "--num-blocks", "400", "--block-size", "8", "--kv-events-config", json.dumps(EVENTS))
    tap = subprocess.Popen([args.kvwire, "tap", "--endpoint", server.endpoint, "--replay-endpoint", server.replay_endpoint, "--quiet", "--json",
                            "--removals", "exact", "--against", server.url], stdout=subprocess.PIPE, text=True)
    every_kind(server.client())
    answers = many_clients(server, expected, args.clients, args.seconds)
    tap.send_signal(signal.SIGINT)
    words, _ = tap.communicate(timeout=60)
    summary = json.loads(words.splitlines()[-1])["summary"]
    server.stop()
    expect(tap.returncode == 0, f"tap ends with {tap.returncode}: {summary}")
    expect(summary["violations"] == 0 and summary["blocks_removed"] > 0, f"tap: {summary}")
    expect(summary["against"]["disagreed"] == 0 and summary["against"]["agreed"] >= args.agreements, f"tap against the engine: {summary}")
    print(f"openai {openai.__version__}: {args.clients} clients, {answers} answers equal to those without a cache; stream and engine agreed at "
          f"{summary['against']['agreed']} numbers; {summary['messages']} messages, {summary['blocks_removed']} blocks removed")


if __name__ == "__main__":
    main()
