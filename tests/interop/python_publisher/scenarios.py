# SPDX-License-Identifier: Apache-2.0
"""What `kvwire tap --check` says of a publisher that behaves as vLLM's does, while things go wrong.

Usage: scenarios.py KVWIRE [SCENARIO...]. Once a later batch has arrived, tap is never wrong about what was sent: a clean verdict holds
what the publisher holds, digest by digest, and any other verdict gives its reason. Exit code 0 only if all of it holds.
"""

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from publisher import Engine, Publisher

CLEAN, VIOLATED, INCOMPLETE = 0, 1, 2
NAMES = {CLEAN: "clean", VIOLATED: "violated", INCOMPLETE: "incomplete", 3: "silent"}
WATCHDOG = 120


class Tap:
    def __init__(self, kvwire, directory, with_replay=True):
        self.state = directory / "state"
        self.digests = directory / "digests"
        words = [kvwire, "tap", "--check", "--endpoint", f"ipc://{directory}/live", "--wait", "20", "--until-idle", "2",
                 "--dump-state", str(self.state), "--dump-digests", str(self.digests)]
        if with_replay:
            words += ["--replay-endpoint", f"ipc://{directory}/replay"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.lines = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.wait_for(lambda line: line.startswith("connecting to"))

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()

    def wait_for(self, condition):
        with self.changed:
            assert self.changed.wait_for(lambda: any(map(condition, self.lines)), WATCHDOG), self.lines[-5:]

    def wait_for_message(self, number):
        self.wait_for(lambda line: line.split()[:1] == [str(number)])

    def end(self):
        code = self.process.wait(WATCHDOG)
        self.reader.join()
        return code

    def reasons(self):
        return [line for line in self.lines if line.startswith(("incomplete: ", "cause: "))]


class Scenario:
    """One engine behind one pair of addresses, and a tap."""

    def __init__(self, kvwire, directory):
        self.kvwire = kvwire
        self.directory = directory
        self.first_block = 1

    def publisher(self, **options):
        publisher = Publisher(f"ipc://{self.directory}/live", f"ipc://{self.directory}/replay", **options)
        engine = Engine(publisher, self.first_block)
        self.first_block += 1_000_000
        return publisher, engine

    def tap(self, **options):
        return Tap(self.kvwire, self.directory, **options)


def join(publisher, engine, tap):
    """Steps until the subscription has arrived."""
    deadline = time.monotonic() + WATCHDOG
    while not any(line.split()[:1] == [str(publisher.next - 1)] for line in list(tap.lines)):
        assert time.monotonic() < deadline, tap.lines[-5:]
        engine.steps(1)
        time.sleep(0.01)


def plain(scenario):
    publisher, engine = scenario.publisher()
    tap = scenario.tap()
    engine.steps(200)
    return publisher, tap, {CLEAN}


def live_loss(scenario):
    publisher, engine = scenario.publisher()
    publisher.lose = lambda number: number % 7 in (3, 4)
    tap = scenario.tap()
    engine.steps(200)
    return publisher, tap, {CLEAN}


def lost_tail(scenario):
    publisher, engine = scenario.publisher()
    publisher.lose = lambda number: number >= 90
    tap = scenario.tap()
    engine.steps(100)
    return publisher, tap, {CLEAN}


def loss_without_replay(scenario):
    publisher, engine = scenario.publisher()
    tap = scenario.tap(with_replay=False)
    join(publisher, engine, tap)
    lost = publisher.next + 5
    publisher.lose = lambda number: number == lost
    engine.steps(20)
    return publisher, tap, {INCOMPLETE}


def loss_older_than_the_ring(scenario):
    publisher, engine = scenario.publisher(buffer_steps=10)
    tap = scenario.tap()
    engine.steps(20)
    tap.wait_for_message(19)
    publisher.lose = lambda number: 20 <= number < 60
    engine.steps(50)
    return publisher, tap, {INCOMPLETE}


def spent_number(scenario):
    publisher, engine = scenario.publisher()
    publisher.fail = lambda number: number == 42
    tap = scenario.tap()
    engine.steps(100)
    return publisher, tap, {INCOMPLETE}


def late_join(scenario):
    publisher, engine = scenario.publisher()
    engine.steps(900)
    tap = scenario.tap()
    return publisher, tap, {CLEAN}


def late_join_above_the_pipe(scenario):
    publisher, engine = scenario.publisher()
    engine.steps(5000)
    tap = scenario.tap()
    # The ROUTER may drop anything between what its pipe takes.
    return publisher, tap, {CLEAN, INCOMPLETE}


def late_join_after_the_ring_wrapped(scenario):
    publisher, engine = scenario.publisher(buffer_steps=100)
    engine.steps(500)
    tap = scenario.tap()
    return publisher, tap, {INCOMPLETE}


def lossy_router(scenario):
    publisher, engine = scenario.publisher(router_hwm=10)
    engine.steps(50)
    tap = scenario.tap()
    return publisher, tap, {CLEAN, INCOMPLETE}


def slow_router(scenario):
    publisher, engine = scenario.publisher()
    tap = scenario.tap()
    join(publisher, engine, tap)
    publisher.answer_delay = 3.0
    lost = publisher.next + 5
    publisher.lose = lambda number: number == lost
    engine.steps(20)
    return publisher, tap, {CLEAN, INCOMPLETE}


def idle_reset(scenario):
    publisher, engine = scenario.publisher()
    tap = scenario.tap()
    engine.steps(50)
    tap.wait_for_message(49)
    engine.reset()
    engine.steps(1)
    return publisher, tap, {CLEAN}


def restart(batches):
    def run(scenario):
        publisher, engine = scenario.publisher()
        tap = scenario.tap()
        engine.steps(50)
        tap.wait_for_message(49)
        publisher.die()
        publisher, engine = scenario.publisher()
        engine.steps(batches)
        return publisher, tap, {CLEAN}

    return run


def restart_after_loss(scenario):
    publisher, engine = scenario.publisher()
    tap = scenario.tap()
    publisher.lose = lambda number: number == 40
    engine.steps(50)
    tap.wait_for_message(49)
    publisher.die()
    publisher, engine = scenario.publisher()
    publisher.lose = lambda number: number in (3, 60)
    engine.steps(80)
    return publisher, tap, {CLEAN}


SCENARIOS = {
    "nothing goes wrong": plain,
    "two of seven live messages lost": live_loss,
    "the last ten live messages lost": lost_tail,
    "a live message lost, no replay": loss_without_replay,
    "more lost than the ring holds": loss_older_than_the_ring,
    "a number spent on a batch that could not be encoded": spent_number,
    "joined late": late_join,
    "joined late, more than the ROUTER's pipe takes": late_join_above_the_pipe,
    "joined after the ring wrapped": late_join_after_the_ring_wrapped,
    "ROUTER that drops above ten messages": lossy_router,
    "ROUTER that answers after three seconds": slow_router,
    "reset while idle, then a step": idle_reset,
    "restart with fewer batches": restart(20),
    "restart with as many batches": restart(50),
    "restart with more batches": restart(120),
    "restart with losses before and after": restart_after_loss,
}


def differences(publisher, tap, code, allowed):
    """What is wrong with the verdict."""
    if code not in allowed:
        yield f"verdict {NAMES.get(code, code)} instead of {' or '.join(NAMES[one] for one in sorted(allowed))}"
    if code != CLEAN:
        if not tap.reasons():
            yield "no reason is given"
        return
    if tap.state.read_text() != publisher.held.lines():
        yield "clean, and the blocks are not the publisher's"
    last_life = {}
    for line in tap.digests.read_text().splitlines():
        number, digest = line.split(" ", 1)
        if int(number) == 0:
            last_life = {}
        last_life[int(number)] = digest
    if last_life != publisher.digests:
        wrong = [number for number in publisher.digests if publisher.digests[number] != last_life.get(number)]
        yield f"clean, and the digests differ at {wrong[:5]}"


def main():
    kvwire, *wanted = sys.argv[1:]
    failed = 0
    for name, run in SCENARIOS.items():
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as directory:
            publisher, tap, allowed = run(Scenario(kvwire, Path(directory)))
            code = tap.end()
            wrong = list(differences(publisher, tap, code, allowed))
            publisher.die()
        reason = f" ({tap.reasons()[0]})" if tap.reasons() else ""
        print(f"interop python_publisher: {name}: {NAMES.get(code, code)}{reason}", flush=True)
        for line in wrong:
            print(f"interop python_publisher: {name}: FAILED: {line}", file=sys.stderr)
        if wrong:
            print("\n".join(tap.lines[-20:]), file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
