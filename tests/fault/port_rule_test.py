#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""B8: nobody asks the system for a free port and binds it later; who needs one binds port 0 and reads it back.

Usage: port_rule_test.py SOURCE_DIR. Checks the sources, and that each kind of violation, planted in a tree of its own,
is found."""
import pathlib
import re
import sys
import tempfile

ROOMS = ("kv_events", "scheduler", "engine", "scripts", "tests")
SUFFIXES = {".cc", ".h", ".py", ".sh", ""}
# Tests in these rooms bind what they name.
BINDING_TESTS = ("tests/fault", "tests/integration")
THIS = "tests/fault/port_rule_test.py"
# What looks like a violation and is none: file and text.
ALLOWED = {
    ("tests/integration/subscribe/stream_set_test.cc", "tcp://*:5557"),  # refused, never connected
    ("tests/integration/tap/doctor_test.cc", "tcp://*:5557"),  # refused, never connected
    ("tests/integration/tap/doctor_test.cc", "tcp://127.0.0.1:5557"),  # refused, never connected
    ("tests/integration/tap/tap_test.cc", "tcp://*:5557"),  # refused, never bound
    ("tests/integration/tap/top_test.cc", "tcp://a-host-with-a-name-that-is-long.cluster.local:5557"),  # there is no such host
    ("tests/integration/tap/tap_test.cc", "tcp://127.0.0.1:5557"),  # refused, never connected
    ("tests/integration/tap/tap_test.cc", "tcp://localhost:5557"),  # refused, never connected
}

PROBE_NAME = re.compile(r"(?:free|open|unused|available|random)_?(?:tcp_?)?ports?\b"
                        r"|(?:find|pick|choose|reserve|allocate)_?ports?\b", re.IGNORECASE)
FIXED_PORT = re.compile(r"tcp://[^\"'\s:]+:([0-9]+)")


def violations(root):
    """(file, line, what) of each."""
    found = []
    for room in ROOMS:
        for path in sorted((root / room).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix not in SUFFIXES or not path.is_file() or name == THIS:
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                hits = [(hit.group(), "a port is asked for before it is bound") for hit in PROBE_NAME.finditer(line)]
                if name.startswith(BINDING_TESTS):
                    hits += [(hit.group(), "a test names a fixed port") for hit in FIXED_PORT.finditer(line)
                             if 0 < int(hit.group(1)) < 65536]
                found += [(name, number, f"{text}: {what}") for text, what in hits if (name, text) not in ALLOWED]
    return found


PLANTED = [
    # name, line, number of violations
    ("tests/fault/a.cc", "const int port = GetOpenPort();", 1),
    ("tests/unit/a.py", "port = get_free_port()", 1),
    ("engine/cli/a.cc", "std::uint16_t PickPort() {", 1),
    ("scripts/a", "unused_tcp_port=1", 1),
    ("tests/integration/a.cc", 'config.endpoint = "tcp://127.0.0.1:5557";', 1),
    ("tests/integration/a.cc", 'config.endpoint = "tcp://127.0.0.1:0";', 0),
    ("tests/integration/a.cc", 'CHECK_FALSE(Made("tcp://*:70000"));', 0),
    ("tests/unit/a.cc", 'CHECK(Parse("tcp://*:5557"));', 0),
    ("kv_events/transport/a.h", "// The system chooses a free port when it is 0.", 0),
]


def main():
    failed = 0
    for name, line, expected in PLANTED:
        with tempfile.TemporaryDirectory() as directory:
            planted = pathlib.Path(directory, name)
            planted.parent.mkdir(parents=True)
            planted.write_text(line + "\n")
            found = violations(pathlib.Path(directory))
        if len(found) != expected:
            failed += 1
            print(f"FAILED: {name}: {line}: expected {expected}, found {found}")
    for name, number, what in violations(pathlib.Path(sys.argv[1])):
        failed += 1
        print(f"{name}:{number}: {what}")
    print(f"{failed} failed")
    return 1 if failed else 0


sys.exit(main())
