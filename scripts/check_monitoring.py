#!/usr/bin/env python3
"""Checks docs/monitoring against real figures: scripts/check_monitoring.py KVWIRE

Starts an engine and a watcher, and reads /metrics of both. Every metric that an alert or a panel names must be there, every label
value that they choose by "=" must occur, and every metric of a stream that operations.md lists must be there, and the other way round.
"""
import json
import pathlib
import re
import subprocess
import sys
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALERTS = ROOT / "docs/monitoring/kvwire-alerts.yml"
DASHBOARD = ROOT / "docs/monitoring/kvwire-dashboard.json"
OPERATIONS = ROOT / "docs/operations.md"
NAME = re.compile(r"\b(?:kvwire_|vllm:)[a-zA-Z0-9_]+")
SELECTION = re.compile(r"\b((?:kvwire_|vllm:)[a-zA-Z0-9_]+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')
EVENTS = '{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*", "kvwire": {"mode": "bind"}}'


def alert_expressions(text):
    """(where, expression) of each rule; wrong shapes end the check."""
    for group in yaml.safe_load(text)["groups"]:
        for rule in group["rules"]:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, f"{rule['alert']}: unknown keys: {sorted(rule)}"
            assert rule["labels"]["severity"] in ("critical", "warning", "info"), f"{rule['alert']}: severity"
            assert rule["annotations"]["summary"] and rule["annotations"]["description"], rule["alert"]
            yield f"alert {rule['alert']}", rule["expr"]


def panel_expressions(text):
    dashboard = json.loads(text)
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identities)) == len(identities), "panels share an id"
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield f"panel \"{panel['title']}\"", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]["query"]


def series(metrics):
    """name -> label -> values."""
    found = {}
    for line in metrics.splitlines():
        if line.startswith("#") or not line:
            continue
        labels = found.setdefault(re.match(r"[a-zA-Z0-9_:]+", line).group(), {})
        for label, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', line):
            labels.setdefault(label, set()).add(value)
    return found


def problems_of(expressions, found):
    for where, expression in expressions:
        names = NAME.findall(expression)
        if not names:
            yield f"{where}: names no metric: {expression}"
        for name in names:
            if name not in found:
                yield f"{where}: no such metric: {name}"
        for name, matchers in SELECTION.findall(expression):
            for label, how, value in MATCHER.findall(matchers):
                if label not in found.get(name, {}):
                    yield f"{where}: {name} has no label {label}"
                elif how in ("=", "!=") and not value.startswith("$") and value not in found[name][label]:
                    yield f"{where}: {name} has no {label}=\"{value}\""


def documented_problems(text, found):
    listed = set(re.findall(r"`(kvwire_streams?(?:_[a-z_]+)?)(?:\{[a-z_, ]*\})?`", text))
    real = {name for name in found if name.startswith("kvwire_stream")}
    for name in sorted(listed - real):
        yield f"operations.md: no such metric: {name}"
    for name in sorted(real - listed):
        yield f"operations.md: does not list {name}"


def line_with(process, pattern):
    for line in process.stdout:
        match = re.search(pattern, line)
        if match:
            return match.group(1)
    raise SystemExit(f"no line with {pattern}")


def scrape(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def real_metrics(kvwire):
    children = []

    def start(*arguments):
        children.append(subprocess.Popen([kvwire, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        return children[-1]

    try:
        engine = start("serve", "--port", "0", "--kv-events-config", EVENTS)
        addresses = line_with(engine, r"events of rank 0 on (\S+, replay [^,]+),").replace(", replay ", ",")
        served = line_with(engine, r"serving on (\S+)")
        body = json.dumps({"prompt": "Once upon a time there was a king who had three sons.", "max_tokens": 8}).encode()
        request = urllib.request.Request(served + "/v1/completions", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=60).read()
        watcher = start("tap", "--endpoint", addresses + ",rank=0,dp-size=2", "--check", "--metrics", "0")
        url = line_with(watcher, r"metrics on (\S+)")
        line_with(watcher, r"(BlockStored)")
        while "kvwire_stream_last_message_age_seconds{" not in scrape(url):
            pass
        return scrape(served + "/metrics") + scrape(url)
    finally:
        for child in children:
            child.kill()
            child.wait()


def main():
    found = series(real_metrics(sys.argv[1]))
    expressions = list(alert_expressions(ALERTS.read_text())) + list(panel_expressions(DASHBOARD.read_text()))
    problems = list(problems_of(expressions, found)) + list(documented_problems(OPERATIONS.read_text(), found))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"monitoring: {len(expressions)} expressions, {len(found)} metrics, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
