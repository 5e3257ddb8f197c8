#!/usr/bin/env python3
"""Checks the direction of includes between rooms: check_includes.py RULES ROOT.

Rules: scripts/include_rules.txt. Also checks that public headers include only the standard library, tl::expected and
kvwire's own headers. Prints every violation; exit 1 if there is one.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')
ZMQ = {"zmq.h", "zmq.hpp", "zmq_addon.hpp"}
# Headers that only the executable uses may include its libraries.
NOT_PUBLIC = ("engine/cli/", "engine/http/")


def read_rules(path):
    rules = {}
    for line in pathlib.Path(path).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            room, allowed = line.split(":")
            rules[room.strip()] = set(allowed.split())
    return rules


def room_of(path, rules):
    """The longest room that the path lies in, or None for files outside all rooms."""
    parts = path.split("/")[:-1]
    for end in range(len(parts), 0, -1):
        room = "/".join(parts[:end])
        if room in rules:
            return room
    return None


def check(rules, root):
    violations = []
    files = 0
    for room in rules:
        for path in sorted((root / room).glob("**/*")):
            name = path.relative_to(root).as_posix()
            if path.suffix not in (".h", ".cc") or room_of(name, rules) != room:
                continue
            files += 1
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if match:
                    reason = forbidden(rules, room, name, *match.groups())
                    if reason:
                        violations.append(f"{name}:{number}: {reason}")
    return files, violations


def forbidden(rules, room, name, quote, target):
    if quote == '"':
        other = room_of(target, rules)
        if other is None:
            return f'"{target}" is not a path from the root into a room'
        if other != room and other not in rules[room]:
            return f"{room} may not include {other} ({target})"
        return None
    if target in ZMQ:
        return None if "zmq" in rules[room] else f"{room} may not include <{target}>"
    public = name.endswith(".h") and not name.startswith(NOT_PUBLIC)
    standard = re.fullmatch(r"[a-z_0-9]+", target) or target.startswith("sys/")
    if public and not standard and target != "tl/expected.hpp":
        return f"a public header may not include <{target}>"
    return None


def main():
    rules = read_rules(sys.argv[1])
    files, violations = check(rules, pathlib.Path(sys.argv[2]))
    for violation in violations:
        print(violation, file=sys.stderr)
    print(f"include directions: {files} files, {len(violations)} violations")
    return 1 if violations or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
