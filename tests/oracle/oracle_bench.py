# SPDX-License-Identifier: MIT
"""A measurement of bench from outside: its lines are JSON with the promised keys, and the numbers fit each other."""

import json
import os
import subprocess
import sys

KEYS = {"op", "case", "mode", "threads", "pages", "median_ns", "bytes", "gb_per_s", "ceiling_percent"}
NEEDED_BYTES = 4 << 30

with open("/proc/meminfo") as lines:
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
if available < NEEDED_BYTES:
    print("skipped: bench needs 4 GiB")
    sys.exit(77)

run = subprocess.run([os.environ["PAGEDKV"], "bench", "step", "--threads", "1", "--json"],
                     capture_output=True, text=True)
lines = [json.loads(line) for line in run.stdout.splitlines()]
failures = 0


def check(what, holds):
    global failures
    if not holds:
        failures += 1
        print(f"bench: {what}")


check(f"exit status {run.returncode}: {run.stderr}", run.returncode == 0)
cases = [line for line in lines if line["op"] == "step"]
check("lines of the step with huge and with 4 KiB pages", {line["pages"] for line in cases} == {"huge", "4k"})
check("16 lines of the step", len(cases) == 16)
for line in lines:
    case = f"{line.get('op')}, {line.get('case')}"
    check(f"{case}: lacks {sorted(KEYS - line.keys())}", KEYS <= line.keys())
    check(f"{case}: {line['median_ns']} ns", 0 < line["q1_ns"] <= line["median_ns"] <= line["q3_ns"])
    if line["gb_per_s"] is not None:
        speed = line["bytes"] / line["median_ns"]
        check(f"{case}: {line['gb_per_s']} GB/s, not {speed}", abs(line["gb_per_s"] - speed) <= 0.01 * speed)
    if line["ceiling_percent"] is not None:
        check(f"{case}: {line['ceiling_percent']} % of the ceiling", line["ceiling_percent"] > 0)
print(f"bench: {len(lines)} lines")
sys.exit(failures > 0)
