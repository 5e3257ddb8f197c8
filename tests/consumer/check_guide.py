# SPDX-License-Identifier: Apache-2.0
"""Checks that every C++ and CMake block of a guide stands in the sources it describes, line by line.

Usage: check_guide.py GUIDE.md DIRECTORY
Indentation does not count. Exit code 1 names the first line of every block that is found nowhere.
"""

import pathlib
import re
import sys


def significant(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def holds(lines, block):
    width = len(block)
    return any(lines[i : i + width] == block for i in range(len(lines) - width + 1))


def main(guide, directory):
    text = pathlib.Path(guide).read_text(encoding="utf-8")
    blocks = [significant(body) for body in re.findall(r"^```(?:cpp|cmake)\n(.*?)^```", text, re.M | re.S)]
    files = [path for path in sorted(pathlib.Path(directory).rglob("*")) if path.is_file()]
    sources = [significant(path.read_text(encoding="utf-8")) for path in files]
    if not blocks or not sources:
        print(f"{guide}: {len(blocks)} blocks, {directory}: {len(sources)} files; nothing to compare")
        return 1
    missing = [block for block in blocks if not any(holds(lines, block) for lines in sources)]
    for block in missing:
        print(f"{guide}: not in {directory}: the block that begins with: {block[0] if block else '(nothing)'}")
    print(f"{len(blocks) - len(missing)} of {len(blocks)} blocks found")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
