#!/usr/bin/env python3
"""Checks that third_party/packages.txt, the imported targets and the table of third_party/README.md agree."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
listed, packages = set(), set()
for line in (root / "third_party/packages.txt").read_text().splitlines():
    if line and not line.startswith("#"):
        package, target = line.split()
        packages.add(package)
        if target != "tool":
            listed.add(target)
targets = {
    "kvwire_dep_" + name
    for name in re.findall(r"^\s*kvwire_dependency\((\w+)", (root / "third_party/CMakeLists.txt").read_text(), re.M)
}
table = set(re.findall(r"`([a-z0-9+.-]+)`", (root / "third_party/README.md").read_text()))
problems = [f"imported target {t} has no package in packages.txt" for t in sorted(targets - listed)]
problems += [f"packages.txt names {t}, which is not an imported target" for t in sorted(listed - targets)]
problems += [f"package {p} is not in the table of third_party/README.md" for p in sorted(packages - table)]
for problem in problems:
    print(problem, file=sys.stderr)
print(f"packages: {len(packages)} packages, {len(targets)} targets, {len(problems)} problems")
sys.exit(1 if problems else 0)
