"""How the cost grows: one dimension at a time, each of its values on fresh servers.

A sweep takes so many minutes at most: a value that would not fit, into the time, the memory or the disk, is left out,
and the report says so. Where the memory is for two servers only, ringd is compared with the first reference.
"""

import dataclasses
import os
import sys
import time

from . import grpc, scenarios
from .machine import Failure, disk, memory_bytes
from .server import NotAvailable

# What a key takes beside its value in the hungriest server, to tell what fits.
KEY_BYTES_ESTIMATE = 400
# Keys put in a second into the slowest, before it is known.
FILL_RATE_ESTIMATE = 8_000
# Starting and stopping servers.
SECONDS_BESIDE = 5
# Of values that are loaded, so that large ones are few; and what puts of large ones may write in a second.
LOADED_BYTES_MAX = 512 << 20
PUT_BYTES_A_SECOND = 200 << 20


def run(comparison, sweep):
    about = {"name": sweep.name, "title": sweep.title, "unit": sweep.unit, "rows": []}
    comparison.results["sweeps"].append(about)
    deadline = time.monotonic() + 60 * comparison.settings.sweep_minutes
    for value in values_of(sweep, comparison.settings):
        extent = extent_of(sweep, value, comparison.settings)
        row = {"value": value, "servers": {}}
        about["rows"].append(row)
        names, lack = choose(comparison, extent)
        left = deadline - time.monotonic()
        needed = seconds_of(comparison, sweep, extent, about["rows"], len(names))
        if not lack and needed > left:
            lack = f"about {needed / 60:.0f} minutes needed, {max(left, 0) / 60:.0f} left of what a sweep may take"
        if lack:
            row["reason"] = lack
            say(f"{sweep.name} {value}: left out: {lack}")
            continue
        try:
            measure(comparison, sweep, extent, row, names)
        except (Failure, NotAvailable, grpc.CallFailed) as failure:
            row["reason"] = str(failure)
            say(f"{sweep.name} {value}: {failure}")
        comparison.save()


def values_of(sweep, settings):
    """All of them; in a smoke run the first two."""
    return sweep.values[:2] if settings.form == "quick" else sweep.values


def extent_of(sweep, value, settings):
    usual = {"keys": scenarios.SWEEP_KEYS, "value_bytes": scenarios.VALUE_BYTES, "versions": 1, "cores": 1}
    extent = {**usual, **sweep.usual, sweep.sets: value}
    if sweep.sets == "value_bytes":
        extent["keys"] = min(extent["keys"], LOADED_BYTES_MAX // value)
    if settings.keys:
        extent["keys"] = min(extent["keys"], settings.keys)
    if settings.form == "quick":
        extent["keys"] = min(extent["keys"], 1_000)
    return extent


def choose(comparison, extent):
    """The names of the servers that are measured, and why none is."""
    if extent["cores"] > os.cpu_count():
        return [], f"{extent['cores']} cores needed, and the machine has {os.cpu_count()}"
    everyone = list(comparison.programs)
    lack = too_large(comparison, extent, len(everyone))
    if lack and len(everyone) > 2:
        fewer = [comparison.results["references"][0], comparison.results["ours"]]
        if not too_large(comparison, extent, len(fewer)):
            return fewer, None
    return everyone, lack


def too_large(comparison, extent, servers):
    """Why a value does not fit this machine; None when it does."""
    bytes_each = extent["keys"] * (KEY_BYTES_ESTIMATE + extent["value_bytes"] * (1 + extent["versions"]))
    needed, available = bytes_each * servers, memory_bytes()[1]
    if needed > 0.8 * available:
        return f"about {needed >> 20} MiB of memory needed, {available >> 20} MiB available"
    needed = 3 * needed
    if extent["value_bytes"] >= scenarios.LARGE_BYTES:
        seconds = 1.2 * comparison.settings.seconds * comparison.settings.rounds
        needed += int(seconds * PUT_BYTES_A_SECOND) * servers
    free = disk(comparison.work)["free_bytes"]
    if needed > free:
        return f"about {needed >> 20} MiB of disk needed, {free >> 20} MiB free"
    return None


def seconds_of(comparison, sweep, extent, rows, servers):
    """What a value will take, by how fast the servers were filled so far."""
    filled = [about["fill_rate"] for row in rows for about in row["servers"].values() if "fill_rate" in about]
    filled += [about["fill_rate"] for about in comparison.results["loaded"].values()]
    rate = min(filled, default=FILL_RATE_ESTIMATE)
    runs = len(sweep.scenarios) * comparison.settings.rounds
    each = extent["keys"] * extent["versions"] / rate
    each += runs * (comparison.seconds_of_run(comparison.settings.seconds)) + SECONDS_BESIDE
    return each * servers


def flags_of(extent):
    """Of the load; and how deep the servers are filled."""
    flags = {key: value for key, value in extent.items() if key.startswith("--")}
    if "watchers" in extent:
        words = scenarios.watchers(extent["watchers"])
        flags = dict(zip(words[::2], words[1::2], strict=True))
    # Of large values fewer at a time: a server may refuse more bytes of writes than it has memory for.
    depth = scenarios.FEW if extent["value_bytes"] >= scenarios.LARGE_BYTES else scenarios.DEEP
    usual = dict(zip(depth[::2], depth[1::2], strict=True))
    return [word for pair in {**usual, **flags}.items() for word in pair], depth


def measure(comparison, sweep, extent, row, names):
    flags, depth = flags_of(extent)
    keys, value_bytes, seconds = extent["keys"], extent["value_bytes"], comparison.settings.seconds
    with comparison.directory() as path, comparison.started(path, names, extent["cores"]):
        for _ in range(extent["versions"]):
            row["servers"] = comparison.fill(keys, value_bytes, depth=depth)
        for scenario in sweep.scenarios:
            named = dataclasses.replace(scenario, name=f"{sweep.name}-{row['value']}-{scenario.name}")
            failed = {}
            for number in range(comparison.settings.rounds):
                for server in (each for each in comparison.servers if each.name not in failed):
                    try:
                        run = comparison.measure(server, named, keys, value_bytes, seconds, number, flags)
                    except (Failure, grpc.CallFailed) as failure:
                        # The others go on; of this one there are no figures for this work.
                        failed[server.name] = str(failure)
                        row["servers"][server.name].get("runs", {}).pop(scenario.name, None)
                        say(f"{sweep.name} {row['value']}: {failure}")
                        comparison.revive()
                        continue
                    found = row["servers"][server.name].setdefault("runs", {})
                    found.setdefault(scenario.name, []).append(run)
                    say(f"{sweep.title}, {row['value']}: {scenario.name}: {server.name}: {run['rate']:.0f}/s")
            for name, reason in failed.items():
                row["servers"][name].setdefault("failed", {})[scenario.name] = reason


def say(text):
    print(text, file=sys.stderr, flush=True)
