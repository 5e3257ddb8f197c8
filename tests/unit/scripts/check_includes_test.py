#!/usr/bin/env python3
"""Tests of the include checker: each forbidden include, planted in a tree of its own, is found."""
import pathlib
import subprocess
import sys
import tempfile

CHECKER = sys.argv[1]
RULES = "low:\nlow/net: low zmq\nhigh: low\n"
CASES = [
    # what, file, line, expected to pass
    ("an upward include is refused", "low/a.cc", '#include "high/h.h"', False),
    ("a subroom is a room of its own", "low/a.cc", '#include "low/net/n.h"', False),
    ("a downward include is allowed", "high/a.cc", '#include "low/l.h"', True),
    ("a room may include itself", "low/net/a.cc", '#include "low/net/n.h"', True),
    ("an include that skips a listed room is refused", "high/a.cc", '#include "low/net/n.h"', False),
    ("libzmq is refused outside its room", "high/a.cc", "#include <zmq.h>", False),
    ("libzmq is allowed in its room", "low/net/a.cc", "#include <zmq.h>", True),
    ("a library in a public header is refused", "low/l.h", "#include <fmt/format.h>", False),
    ("a library in a source is allowed", "low/a.cc", "#include <fmt/format.h>", True),
    ("tl::expected in a public header is allowed", "low/l.h", "#include <tl/expected.hpp>", True),
    ("a path outside the rooms is refused", "low/a.cc", '#include "elsewhere/x.h"', False),
]

failed = 0
for what, name, line, passes in CASES:
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        (root / "rules").write_text(RULES)
        (root / "low/net").mkdir(parents=True)
        (root / "high").mkdir()
        (root / "low/other.cc").write_text("#include <vector>\n")
        (root / name).write_text(line + "\n")
        run = subprocess.run([sys.executable, CHECKER, root / "rules", root], capture_output=True, text=True)
        if (run.returncode == 0) != passes:
            failed += 1
            print(f"FAILED: {what}: exit {run.returncode}\n{run.stdout}{run.stderr}")
print(f"{len(CASES) - failed} passed, {failed} failed")
sys.exit(1 if failed else 0)
