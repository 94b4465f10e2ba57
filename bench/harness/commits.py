"""Compares two commits by the criterion benches of benches/hot: both are built, each in a temporary git worktree, then
their benches run in turn, A B, B A, and so on, and the ratios are printed.

A ratio is B's time over A's; a bench counts as slower or faster when every round says so and their median by more
than --noise. Both run the benches of B, unless --own-benches. What was built stays in target/bench-commits/build,
which makes the next time quicker; the worktrees go.

Takes two builds (some minutes each at first) and, for the benches, at most --minutes: when the next round would not
fit, it is left out.
"""

import argparse
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from .machine import ROOT, TARGET, Failure

WORK = TARGET / "bench-commits"
BENCH = "hot"
# Beside what was asked for: filling the stores that are measured, and criterion's own analysis.
SECONDS_BESIDE = 60
CORE = "0"


def parse(words=None):
    parser = argparse.ArgumentParser(
        prog="scripts/bench-commits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", metavar="A", help="a commit, as git names it: the one before")
    parser.add_argument("b", metavar="B", nargs="?", default="HEAD", help="the one after (HEAD)")
    parser.add_argument("--rounds", type=int, default=3, help="of both (3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring a bench in a round (1)")
    parser.add_argument("--minutes", type=float, default=15.0, help="for all rounds, at most (15)")
    parser.add_argument("--only", default="", metavar="REGEX", help="of the benches' names, as index/")
    parser.add_argument("--noise", type=float, default=5.0, metavar="PERCENT", help="what means nothing (5)")
    parser.add_argument("--fail-above", type=float, metavar="PERCENT", help="end with 1 when a bench is slower by more")
    parser.add_argument("--own-benches", action="store_true", help="each commit's own, for when its interfaces differ")
    parser.add_argument("--profile", default="bench", help="cargo's; `dev` builds quickly, for a smoke run")
    arguments = parser.parse_args(words)
    if arguments.rounds < 1 or arguments.seconds <= 0 or arguments.minutes <= 0 or arguments.noise < 0:
        parser.error("--rounds, --seconds and --minutes are above 0, and --noise is not below")
    return arguments


def say(text):
    print(f"bench-commits: {text}", file=sys.stderr, flush=True)


def git(*words):
    run = subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        raise Failure(f"git {' '.join(words)}: {run.stderr.strip()}")
    return run.stdout.strip()


class Worktree:
    """A commit checked out in a folder of its own, for as long as it is needed."""

    def __init__(self, side, name):
        self.path, self.name = WORK / side, name
        self.commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")

    def __enter__(self):
        self.remove()
        git("worktree", "add", "--quiet", "--detach", str(self.path), self.commit)
        if not (self.path / "benches" / BENCH).is_dir():
            self.remove()
            raise Failure(f"{self.name} ({self.commit[:12]}) has no benches/{BENCH}: it is older than they are")
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        """Also what a run that was killed has left."""
        if self.path.exists():
            subprocess.run(
                ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(self.path)], stderr=subprocess.DEVNULL
            )
            shutil.rmtree(self.path, ignore_errors=True)
        git("worktree", "prune")


def build(tree, profile):
    """The program with the benches of a commit."""
    say(f"building {tree.name} ({tree.commit[:12]})")
    command = ["cargo", "bench", "--quiet", "--locked", "--profile", profile, "--bench", BENCH, "--no-run"]
    command += ["--message-format", "json-render-diagnostics"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(WORK / "build")}
    run = subprocess.run(command, cwd=tree.path, env=environment, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        raise Failure(f"{tree.name} does not build with these benches; what cargo said is above (see --own-benches)")
    for line in run.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["target"]["name"] == BENCH and message["executable"]:
            return message["executable"]
    raise Failure(f"cargo named no program for {tree.name}")


def run_once(program, arguments, folder, seconds_max):
    """{bench: ns, criterion's median} of one run."""
    pinned = ["taskset", "-c", CORE] if shutil.which("taskset") else []
    flags = ["--bench", "--noplot", "--measurement-time", str(arguments.seconds)]
    flags += ["--warm-up-time", str(max(0.1, arguments.seconds / 4)), *([arguments.only] if arguments.only else [])]
    environment = {**os.environ, "CRITERION_HOME": str(folder)}
    try:
        run = subprocess.run(
            [*pinned, program, *flags], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=seconds_max,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failure(f"a round has not ended after {error.timeout:.0f} s") from error
    if run.returncode != 0:
        raise Failure(f"the benches failed:\n{run.stdout[-2000:]}")
    return read(folder)


def read(folder):
    """What criterion stored: {bench: ns}."""
    found = {}
    for about in pathlib.Path(folder).rglob("new/benchmark.json"):
        name = json.loads(about.read_text())["full_id"]
        estimates = json.loads((about.parent / "estimates.json").read_text())
        found[name] = estimates["median"]["point_estimate"]
    if not found:
        raise Failure("not one bench has that name")
    return found


def rounds(programs, arguments):
    """{side: [what each round found]}; sides in turn, and in turn first."""
    found = {side: [] for side in programs}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="criterion-", dir=WORK) as path:
        for number in range(arguments.rounds):
            elapsed = time.monotonic() - began
            if number and elapsed * (number + 1) / number > 60 * arguments.minutes:
                say(f"{number} of {arguments.rounds} rounds: another would not fit into {arguments.minutes:g} minutes")
                break
            for side in list(programs)[:: 1 if number % 2 == 0 else -1]:
                left = 60 * arguments.minutes - (time.monotonic() - began)
                folder = pathlib.Path(path) / f"{side}-{number}"
                found[side].append(run_once(programs[side], arguments, folder, max(left, 0) + SECONDS_BESIDE))
                say(f"round {number + 1} of {arguments.rounds}: {side} done, {time.monotonic() - began:.0f} s so far")
    return found


def compare(before, after, noise):
    """A row for each bench that both have: name, ns of A and B, the ratios of the rounds, what they say."""
    names = set.intersection(*(set(each) for each in [*before, *after]))
    rows = []
    for name in sorted(names):
        ratios = [b[name] / a[name] for a, b in zip(before, after, strict=True)]
        ratio = statistics.median(ratios)
        verdict = ""
        if ratio > 1 + noise / 100 and min(ratios) > 1:
            verdict = "slower"
        elif ratio < 1 / (1 + noise / 100) and max(ratios) < 1:
            verdict = "faster"
        times = [statistics.median(each[name] for each in side) for side in (before, after)]
        rows.append({"name": name, "ns": times, "ratio": ratio, "ratios": ratios, "verdict": verdict})
    return rows


def spoken(ns):
    for by, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= by:
            return f"{ns / by:.4g} {unit}"
    return f"{ns:.4g} ns"


def table(rows):
    width = max(len(row["name"]) for row in rows)
    lines = [f"{'bench':{width}}{'A':>12}{'B':>12}{'B / A':>8}   rounds"]
    for row in rows:
        a, b = map(spoken, row["ns"])
        said = f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}"
        lines.append(f"{row['name']:{width}}{a:>12}{b:>12}{row['ratio']:>8.3f}   {said}  {row['verdict']}".rstrip())
    return "\n".join(lines)


def bench(arguments):
    WORK.mkdir(parents=True, exist_ok=True)
    with open(WORK / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Failure(f"another run works in {WORK}") from error
        with Worktree("a", arguments.a) as a, Worktree("b", arguments.b) as b:
            if not arguments.own_benches:
                shutil.rmtree(a.path / "benches")
                shutil.copytree(b.path / "benches", a.path / "benches")
            programs = {"A": build(a, arguments.profile), "B": build(b, arguments.profile)}
            load = os.getloadavg()[0]
            found = rounds(programs, arguments)
    rows = compare(found["A"], found["B"], arguments.noise)
    print(f"A is {a.name} ({a.commit[:12]}), B is {b.name} ({b.commit[:12]})")
    print(f"the thread's CPU time, medians of {len(found['A'])} rounds")
    print(f"load average {load:.1f} at the start" + ("" if arguments.profile == "bench" else "; not the bench profile"))
    print(table(rows))
    limit = arguments.fail_above
    slower = [row["name"] for row in rows if row["verdict"] == "slower" and limit is not None]
    slower = [row["name"] for row in rows if row["name"] in slower and row["ratio"] > 1 + limit / 100]
    if slower:
        say(f"slower by more than {limit:g} %: {', '.join(slower)}")
    return 1 if slower else 0


def main():
    arguments = parse()
    try:
        re.compile(arguments.only)
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        return bench(arguments)
    except (Failure, re.error) as failure:
        say(failure)
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
