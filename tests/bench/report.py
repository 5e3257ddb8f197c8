#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/performance.md from what the benchmarks measured. usage: report.py DIRECTORY_OF_JSON PAGE TRACE"""
import json
import pathlib
import platform
import re
import subprocess
import sys

HEAD = """# Performance

Written by `scripts/bench`, which builds and runs the programs of `tests/bench`. Do not edit.

* {date}, {machine}, {cpus} CPUs, {system}, {compiler}, release build
* A shared machine of {cpus} cores: others worked on it at the same time, the load average was {load} at the start. Absolute times are
  therefore higher than on a quiet machine and drift from run to run; ratios are taken within a round, both sides in turns, and are
  the median of {rounds} rounds.
* Times are CPU time of the measuring thread, medians of the rounds, but for the start of a fleet, which is wall time.

Contents: [Goals](#goals) · [Fleet](#fleet) · [Block pool](#block-pool) · [Block hashes](#block-hashes) · [The step](#the-step) ·
[A trace](#a-trace) · [Delivery](#delivery) · [What was tried](#what-was-tried)

## Goals

| | figure | goal | |
|---|---|---|---|
"""

FLEET = """
## Fleet

`kvwire serve --instances N`, events on, 10000 blocks an engine: from the start of the process until the last engine serves, and the
process's resident memory then, before any request, divided by N.

| engines | start | memory an engine |
|---|---|---|
"""

POOL = """
## Block pool

A request's way through the pool, per block of 16 tokens: allocate, register, announce, take the events, free. The pool of 16384 blocks is
full and no request finds anything, so with events on every block makes a removal and a store. A step has one large request or as many
small ones as make 64 blocks. Nothing is encoded here.

| blocks of a request | events off | events on | on / off |
|---|---|---|---|
"""

STEP_THREAD = """
What events add to a block on the step thread, `StatePublisher` with its digest included, by the blocks of a step; and what a step
costs more while the publisher takes one snapshot after the other, or the stream is cleared and announced again one time after the other.
A step does a piece of up to 512 blocks of either, whatever the pool holds.

| blocks of a step | added a block | piece of a snapshot | piece of a resync |
|---|---|---|---|
"""

HASH = """
## Block hashes

Identity of a block of 16 tokens, ids uniform below 151936 and not repeating, serialization included. The bare SHA-256 of a serialization as
long, measured in turns with it and taken without EVP as the hasher does, says how fast the machine was at that moment.

| algorithm | blocks of a chain | a block | bare SHA-256 | ratio |
|---|---|---|---|---|
"""

STEP = """
## The step

Two engines get the same requests and go forward in turns, step by step, one with events on and a publisher, one with events off; their
tokens are equal, which is checked. Timed are `Schedule` and `UpdateFromOutput`, per step. The share is that of a modelled
step of 1.3 ms, for both kinds of requests, though a real model takes longer for a step of `prefill`, which computes up to 8192 prompt
tokens. `Wake`, a system call that the host places after the model's launch, is not in it and stands beside it.

| requests | events off | events on | added | share | `Wake` |
|---|---|---|---|---|---|
"""

TRACE = """
## A trace

Two engines run the same request trace, `{trace}`, from empty caches of 10000 blocks and go forward in turns, step by step, one with
events on and a publisher, one with events off; their tokens are equal, which is checked. `null` is the publisher that discards, `zmq` the
real one, bound, without a subscriber. Times in calls are the sums over all steps of `Schedule` and `UpdateFromOutput`, with the recording
and `Publish` in them. The share is that of the step time: the calls with events off and the model's time, modelled as 1.3 ms a step and
10 us a computed prompt token (`--prefill-us-per-token`), which is faster than one accelerator computes a model of 8 billion weights.
Wall time, last, is that of all steps, the simulated model and `Wake` included, and what others did on the machine; it judges nothing.

| publisher | requests | steps | events | in calls, off | in calls, on | added | model | share | `Wake` | wall, off | wall, on |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""

DELIVERY = """
## Delivery

From `Publish` to a subscriber over TCP on this machine, wall time. An engine of 20000 blocks steps once a millisecond and its thread sleeps
between. Disturbed: a client that reads a message each 200 us is sent the 10000 batches of the replay buffer meanwhile, and another takes one
snapshot after the other.

| | at rest | disturbed | ratio |
|---|---|---|---|
"""

TRIED = """
## What was tried

What brought the figures above to where they are, and what did not. The ratios of a step are of the fastest rounds of two builds run in turns.

Pool, events on / off (1, 64, 512 and 8192 blocks a request: 2.22, 1.88, 1.85 and 2.28 before all of it;
about 1.6, 1.5, 1.5 and 1.7 after it):

* The digest's place of a group is found once, and the low 64 bits of a hash are one load; removals alike in a row share a record; a stored
  event's tokens go from the pool to the batch without a copy between: 2.06 to 1.76 with 512 blocks.
* A removal repeats the record before it, a stored event grows block by block in the batch: 1.76 to 1.55 with 512 blocks, 2.4 to 1.98
  with one.
* The index's places of the next blocks are fetched ahead: 1.80 to 1.65 with 8192 blocks. Both sides gain, so the ratio gains less than
  the time.
* A stored event repeats the shape of the one before it: 2.0 to 1.7 with one block.
* Fetching the memory that a block's parent and tokens are written to ahead: no difference beyond the noise; left out.
* What remains is data that exists with events on alone: per block the tokens are written twice (the pool keeps them for a full state, the
  batch leaves with its own), the hash three times (removal, store, parent), and the digest is changed twice. The same changes made the
  side without events faster (the low 64 bits of a hash, the fetching ahead), by which the ratio is larger than the time saved.

`sha256_cbor` (1.50 times the bare digest by EVP before, 0.9 after; that is 1.46 times the bare digest without EVP):

* SHA-256 without EVP, which costs half as much again as the digest of two 64-byte blocks: 1.55 to 1.06.
* A token of CBOR written as one word, chosen by its highest bit; the message padded where it lies; the digest stored in 16-byte pieces:
  1.06 to 0.9. Bytes that are read back at once in larger pieces than they were stored in make the processor wait.
* No gain: a copy of known size for the parent's 32 bytes. Slower: a table by the four widths of a token instead of its highest bit.
* What remains is the serialization, whose bytes the digest reads directly after they were written. A block's message begins with its
  parent's digest, so the digests of a chain cannot overlap.

The step with `prefill`: events added 1.48 % before the changes to the pool, and 1.16 % and 1.58 % in runs after them: no clear gain.
"""


class Measured:
    """One benchmark: its name, its counters, and its judged goals."""

    def __init__(self, entry):
        if entry.get("error_occurred"):
            sys.exit(f"{entry['name']}: {entry['error_message']}")
        self.name = re.sub(r"/iterations:.*", "", entry["name"])
        self.size = self.name.rpartition("/")[2]
        self.rounds = entry["iterations"]
        self.goals = [goal.rpartition(": ")[::2] for goal in entry.get("label", "").split("; ") if goal]
        self.counters = entry

    def __getitem__(self, counter):
        return self.counters[counter]


def read(directory, program):
    data = json.loads((directory / f"{program}.json").read_text())
    return data["context"], [Measured(entry) for entry in data["benchmarks"]]


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def machine():
    found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return found.group(1) if found else platform.machine()


def system():
    return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())


def main():
    directory, page, trace_name = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    context, fleet = read(directory, "fleet_bench")
    _, pool = read(directory, "pool_bench")
    _, hashes = read(directory, "hash_bench")
    _, step = read(directory, "step_bench")
    _, trace = read(directory, "trace_bench")
    _, (delivery,) = read(directory, "delivery_bench")
    growth = pool.pop()
    step_thread = [each for each in pool if each.name.startswith("step_thread/")]
    pool = [each for each in pool if each.name.startswith("pool/")]

    goals = []

    def judge(what, measured, figure_of_goal):
        for (goal, verdict), figure in zip(measured.goals, figure_of_goal, strict=True):
            goals.append(f"| {what} | {figure} | {goal} | {verdict} |\n")

    for each in fleet:
        judge(f"{each.size} engines in one process", each,
              [f"{each['start_s']:.2f} s", f"{each['mb_per_engine']:.1f} MB"] if each.goals else [])
    for each in pool:
        judge(f"pool, events on / off, {each.size} blocks a request", each, [f"{each['ratio']:.2f}"])
    for each in hashes:
        judge(f"`{each.name.partition('/')[0]}`, chains of {each.size}", each,
              [f"{each['ns_per_block']:.0f} ns; the bare SHA-256 {each['bare_sha256_ns']:.0f} ns"] if each.goals else [])
    for each in step:
        judge(f"events in the step, {each.name}", each, [f"{each['added_percent']:.2f} %"])
    for each in trace:
        judge(f"events in the steps of a trace, publisher {each.name}", each, [f"{each['added_percent']:.2f} %"])

    text = HEAD.format(date=context["date"][:10], machine=machine(), cpus=context["num_cpus"], system=system(),
                       compiler=output_of("c++", "--version").splitlines()[0], load=f"{context['load_avg'][0]:.1f}",
                       rounds=pool[0].rounds) + "".join(goals)
    text += FLEET + "".join(f"| {e.size} | {e['start_s']:.2f} s | {e['mb_per_engine']:.1f} MB |\n" for e in fleet)
    text += POOL + "".join(f"| {e.size} | {e['off_ns_per_block']:.0f} ns | {e['on_ns_per_block']:.0f} ns | {e['ratio']:.2f} |\n" for e in pool)
    text += (f"\nA block of a request of 8192 costs {growth['growth_off']:.2f} times that of a request of 64 with events off, "
             f"{growth['growth_on']:.2f} times with events on.\n")
    text += STEP_THREAD + "".join(
        f"| {e.size} | {e['added_ns_per_block']:.0f} ns | {e['snapshot_us_per_step']:.0f} us | {e['resync_us_per_step']:.0f} us |\n" for e in step_thread)
    first, last = step_thread[0], step_thread[-1]
    text += (f"\nAn added block costs {last['added_ns_per_block'] / first['added_ns_per_block']:.2f} times as much in steps of {last.size} as in "
             f"steps of {first.size}.\n")
    text += HASH + "".join(
        f"| `{e.name.partition('/')[0]}` | {e.size} | {e['ns_per_block']:.0f} ns | {e['bare_sha256_ns']:.0f} ns | {e['to_bare_sha256']:.2f} |\n"
        for e in hashes)
    text += STEP + "".join(
        f"| {e.name} | {e['off_ns_per_step'] / 1e3:.1f} us | {e['on_ns_per_step'] / 1e3:.1f} us | {e['added_ns_per_step'] / 1e3:.2f} us | "
        f"{e['added_percent']:.2f} % | {e['wake_ns_per_step'] / 1e3:.1f} us |\n" for e in step)
    text += TRACE.format(trace=pathlib.Path(trace_name).name) + "".join(
        f"| {e.name} | {e['requests']:.0f} | {e['steps']:.0f} | {e['events']:.0f} | {e['off_ms']:.1f} ms | {e['on_ms']:.1f} ms | "
        f"{e['added_ms']:.1f} ms | {e['model_ms']:.0f} ms | {e['added_percent']:.2f} % | {e['wake_ms']:.1f} ms | {e['off_wall_ms']:.0f} ms | "
        f"{e['on_wall_ms']:.0f} ms |\n" for e in trace)
    text += DELIVERY + "".join(
        f"| {p} | {delivery[f'rest_{p}_us']:.0f} us | {delivery[f'disturbed_{p}_us']:.0f} us | {delivery[f'ratio_{p}']:.2f} |\n" for p in ("p50", "p99"))
    page.write_text(text + TRIED)
    print(f"{page}: {len(goals)} goals, {sum('| met |' in goal for goal in goals)} met")


if __name__ == "__main__":
    main()
