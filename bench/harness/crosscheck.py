"""Checks ringd-bench against other people's load generators: etcd's own `benchmark`, and h2load where it is installed.

The same work by each of them on the same servers in turn, etcd 3.5.1 and ringd: one call at a time, calls at a rate, as
many as go with 512 in flight, and watches. They agree when

  one at a time   a call takes as long, but for the CPU time that the generator itself needs for it
  at a rate       the rate is kept, and the server needs as much CPU for a call
  many            there are as many calls a second
  watches         there are as many events a second

within --tolerance. etcd's tool needs so much CPU for a call that it is the limit of a fast server: where its core is
busy all the time with fewer calls, the row says so and proves nothing. h2load makes one call over and over. Ends with 1
when a row differs, or when the store's revision did not rise by exactly the puts of either.
"""

import argparse
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass

from . import grpc, others
from .compare import build as build_ringd
from .machine import TARGET, Failure, machine
from .runs import TemporaryDirectory
from .server import NotAvailable, Server, settle

VALUE_BYTES, KEYS = 256, 10_000
PUT, RANGE = "etcdserverpb.KV/Put", "etcdserverpb.KV/Range"
# From here on the core of a load generator is taken to be its limit.
BUSY = 0.85


@dataclass(frozen=True)
class Row:
    """The same work for each: `per_second` calls for so many seconds; by etcd's tool, by ours, by h2load."""

    name: str
    kind: str
    per_second: int
    theirs: tuple
    ours: tuple
    puts: bool = False
    h2load: tuple | None = None


DEEP = ("--conns", 16, "--clients", 512)
ALONE = ("--conns", 1, "--clients", 1)
AT_RATE = ("--conns", 4, "--clients", 64)
SPREAD = ("--key-size", 20, "--key-space-size", KEYS, "--val-size", VALUE_BYTES)
RATE, WATCHERS, PUTS_A_SECOND = 2_000, 1_000, 20
WATCHES = ("--conns", 10, "--streams", 10)
ROWS = (
    Row("put, one at a time", "alone", 1_000, ("put", *ALONE, *SPREAD), ("put", *ALONE), puts=True),
    Row("get, one at a time", "alone", 2_000, ("range", *ALONE, others.KEY.decode()), ("get", *ALONE, "--keys", 1)),
    Row(
        "put, 2 000 a second",
        "rate",
        RATE,
        ("put", *AT_RATE, *SPREAD, "--rate", RATE),
        ("put", *AT_RATE, "--rate", RATE),
        puts=True,
    ),
    Row(
        "get, 2 000 a second",
        "rate",
        RATE,
        ("range", *AT_RATE, "--rate", RATE, others.KEY.decode()),
        ("get", *AT_RATE, "--rate", RATE, "--keys", 1),
    ),
    Row(
        "put, 16 × 32",
        "many",
        8_000,
        ("put", *DEEP, *SPREAD),
        ("put", *DEEP),
        puts=True,
        h2load=(PUT, others.put_message(VALUE_BYTES)),
    ),
    Row(
        "get, 16 × 32",
        "many",
        12_000,
        ("range", *DEEP, others.KEY.decode()),
        ("get", *DEEP, "--keys", 1),
        h2load=(RANGE, others.get_message()),
    ),
    Row(
        "1 000 watches, 20 puts a second",
        "watches",
        PUTS_A_SECOND,
        ("watch", "--conns", 10, "--clients", 10, "--streams", 100, "--watch-per-stream", 10),
        ("watch-latency", *WATCHES, "--watches", 10, "--rate", PUTS_A_SECOND),
        puts=True,
    ),
)


def parse():
    parser = argparse.ArgumentParser(
        prog="scripts/cross-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: nothing is judged but that it works")
    parser.add_argument("--seconds", type=float, help="of each run, about (4)")
    parser.add_argument("--rounds", type=int, help="of all (3)")
    parser.add_argument("--tolerance", type=float, default=20, metavar="PERCENT", help="(20)")
    parser.add_argument("--debug", action="store_true", help="debug builds")
    parser.add_argument("--etcd", type=pathlib.Path, metavar="PATH", help="instead of etcd 3.5.1")
    parser.add_argument("--ringd", type=pathlib.Path, metavar="PATH", help="instead of building it")
    parser.add_argument("--loader", type=pathlib.Path, metavar="PATH", help="a ringd-bench instead of building it")
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or (0.3 if arguments.quick else 4)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    return arguments


def say(text):
    print(f"cross-check: {text}", file=sys.stderr, flush=True)


# Runs: each returns what a generator saw of a row, in the same words.


def by_theirs(server, row, total):
    words = ["--put-total", total, "--put-rate", row.per_second] if row.kind == "watches" else ["--total", total]
    command, *rest = row.theirs
    before = own_cpu()
    seen = others.benchmark(server, [command, *words, *rest])
    calls = total * (WATCHERS if row.kind == "watches" else 1)
    cpu = own_cpu() - before
    # All of its life, in which it also connects and makes its watches.
    return {**seen, "server_cpu_us": 1e6 * seen["server_cpu"] / calls, "cpu_us": 1e6 * cpu / calls,
            "busy": cpu / seen["elapsed"]}  # fmt: skip


def by_ours(server, row, total, seconds):
    command, *rest = row.ours
    words = ["--seconds", seconds] if row.kind == "watches" else ["--total", total]
    usual = ["--value-bytes", VALUE_BYTES, *(["--keys", KEYS] if row.kind != "watches" else [])]
    seen = server.load(command, *usual, *words, *rest)
    return {**seen, "cpu_us": seen["client_cpu_us"], "busy": seen["client_busy"]}


def own_cpu():
    """CPU seconds of children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(server, row, arguments, directory):
    """One round of a row: {generator: what it saw}; what was wrong with the revisions."""
    total = max(1, round(row.per_second * arguments.seconds))
    wrong, found = [], {}
    for name, run in (
        ("ringd-bench", lambda: by_ours(server, row, total, arguments.seconds)),
        ("etcd's benchmark", lambda: by_theirs(server, row, total)),
    ):
        settle([server], 4)
        before = grpc.revision(server.address)
        found[name] = run()
        risen = grpc.revision(server.address) - before
        expected = total if row.puts else 0
        if risen != expected and not (row.kind == "watches" and name == "ringd-bench"):
            wrong.append(f"{row.name}, {server.name}: {name} was to make {expected} revisions and made {risen}")
    if row.h2load and shutil.which("h2load"):
        rate = others.h2load(server, *row.h2load, arguments.seconds, directory)
        if rate is None:
            wrong.append(f"{row.name}, {server.name}: h2load saw a failure")
        else:
            found["h2load"] = {"rate": rate}
    return found, wrong


# Verdicts.


def merge(rounds):
    """{generator: the median of each figure}."""
    names = set.intersection(*(set(each) for each in rounds))
    merged = {}
    for name in (each for each in rounds[0] if each in names):
        seen = [each[name] for each in rounds]
        keys = [key for key, value in seen[0].items() if isinstance(value, (int, float))]
        merged[name] = {key: statistics.median(each[key] for each in seen) for key in keys}
    return merged


def judge(kind, ours, theirs, tolerance):
    """What a row says of a generator against ours: the figure's ratio, theirs over ours, and a word."""
    if kind == "alone":
        # The time that a call spends outside of the generator.
        ratio = outside(theirs) / outside(ours)
    elif kind == "rate":
        ratio = theirs["server_cpu_us"] / ours["server_cpu_us"]
        if abs(theirs["rate"] / ours["rate"] - 1) > tolerance / 100:
            return ratio, bound(theirs) or "DIFFERS: the rate was not kept"
    else:
        ratio = theirs["rate"] / ours["rate"]
    if abs(ratio - 1) <= tolerance / 100:
        return ratio, "agree"
    if kind != "alone" and ratio < 1 and bound(theirs):
        return ratio, bound(theirs)
    return ratio, "DIFFERS"


def bound(seen):
    return "its core is the limit" if seen.get("busy", 0) >= BUSY else None


def outside(seen):
    return 1e6 / seen["rate"] - seen["cpu_us"]


COMPARED = {
    "alone": "µs outside of the generator",
    "rate": "server CPU",
    "many": "calls a second",
    "watches": "events a second",
}


def table(found, tolerance):
    lines = [f"{'':34}{'':10}{'':18}{'/s':>10}{'p50 µs':>9}{'p99 µs':>9}{'CPU µs':>8}{'own':>7}{'busy':>6}"]
    differs = False
    for row, server, seen in found:
        for name, figures in seen.items():
            cells = "".join(
                f"{figures[key]:>{width}.{digits}f}" if figures.get(key) is not None else " " * width
                for key, width, digits in (
                    ("rate", 10, 0), ("p50_us", 9, 0), ("p99_us", 9, 0), ("server_cpu_us", 8, 1), ("cpu_us", 7, 1),
                )
            )  # fmt: skip
            cells += f"{figures['busy']:>6.0%}" if "busy" in figures else ""
            said = ""
            if name != "ringd-bench":
                ratio, word = judge(row.kind, seen["ringd-bench"], figures, tolerance)
                differs |= word.startswith("DIFFERS")
                said = f"  {COMPARED[row.kind]}: {ratio:.2f}, {word}"
            lines.append(f"{row.name:34}{server:10}{name:18}{cells}{said}")
    return "\n".join(lines), differs


def check(arguments):
    work = TARGET / "tmp"
    work.mkdir(parents=True, exist_ok=True)
    others.build()
    if not arguments.etcd:
        subprocess.run([others.ROOT / "scripts/setup-tests", "etcd-3.5.1"], check=True)
    ringd, loader, _ = build_ringd(arguments)
    programs = {"etcd": arguments.etcd or TARGET / "etcd-3.5.1/etcd", "ringd": ringd}
    with TemporaryDirectory(work) as directory:
        about = machine(directory)
        servers = []
        try:
            for name, program in programs.items():
                servers.append(Server(name, program, directory, loader))
                servers[-1].await_ready()
                servers[-1].load("fill", "--keys", KEYS, "--value-bytes", VALUE_BYTES)
            found, wrong = [], []
            for row in ROWS:
                rounds = {server.name: [] for server in servers}
                for _ in range(arguments.rounds):
                    for server in servers:
                        seen, said = measure(server, row, arguments, directory)
                        rounds[server.name].append(seen)
                        wrong += said
                found += [(row, name, merge(each)) for name, each in rounds.items()]
                say(f"{row.name}: done")
        finally:
            for server in servers:
                server.stop()
    print("{cpu}, {cores} cores, Linux {kernel}, commit {commit:.12}, load average {load_at_start:.1f}".format(**about))
    text, differs = table(found, arguments.tolerance)
    print(text)
    for each in wrong:
        say(each)
    return 1 if wrong or differs and not arguments.quick else 0


def main():
    arguments = parse()
    try:
        return check(arguments)
    except (Failure, NotAvailable, grpc.CallFailed, subprocess.CalledProcessError) as failure:
        say(failure)
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
