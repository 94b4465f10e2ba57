"""The runs: servers in turn under the same load, and the checks that the work was really done on each."""

import dataclasses
import json
import math
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from . import grpc, scenarios, summary, sweeps
from .machine import ROOT, Failure
from .cluster import Cluster
from .server import NotAvailable, Server, settle

# For the check of equal hashes: put one at a time, so that each server sees the same history.
SAME_HISTORY_KEYS = 300
# Beside ten times what it should take: preparing, warming up, a server that is slow.
RUN_SECONDS_MAX = 60
# Of the time that is left, what is planned to be used: runs take longer than planned, not shorter.
PLANNED_SHARE = 0.85
# Runs are made shorter down to this, then there are fewer rounds, then shorter ones down to the least.
SECONDS_WISHED, SECONDS_MIN = 1.5, 1.0
NO_TIME = "no time left of the minutes there were"
# From here on a run's file size is followed.
LONG_SECONDS = 10
# Copying a data directory and starting on it a few times, as planned.
RESTARTS_SECONDS = 4
# Kills of a cluster's leader, by the form, and what one takes, as planned.
FAILOVERS = {"quick": 1, "default": 10, "full": 20}
FAILOVER_SECONDS = 4
# A member that has just come back has little to do before the next kill.
FAILOVER_SETTLE_SECONDS = 0.5


@dataclasses.dataclass
class Settings:
    """How much is run; see `compare.parse`."""

    form: str
    seconds: float
    rounds: int
    keys: int | None
    settle_seconds: float
    only: tuple = ()
    # What a sweep may take, at most.
    sweep_minutes: float = 45
    # What all of it may take from `began` on, by the monotonic clock; None for as long as it takes.
    minutes: float | None = None
    began: float = dataclasses.field(default_factory=time.monotonic)


class Progress:
    """What was planned and how far it is, a line to a step on standard error."""

    def __init__(self):
        self.began, self.planned, self.done = time.monotonic(), 0.0, 0.0

    def plan(self, seconds):
        self.planned += seconds

    def step(self, seconds, text):
        self.done += seconds
        elapsed = time.monotonic() - self.began
        left = elapsed / max(self.done, 1e-9) * max(0, self.planned - self.done)
        share = min(100, 100 * self.done / self.planned) if self.planned else 100
        print(f"[{share:3.0f}%, {clock(left):>6} left] {text}", file=sys.stderr, flush=True)


def clock(seconds):
    return f"{int(seconds) // 60}m{int(seconds) % 60:02}s"


class Comparison:
    """A comparison of servers as it runs; `results` is what results.json holds, written after every step."""

    def __init__(self, settings, programs, loader, work, output, results):
        self.settings, self.programs, self.loader = settings, programs, loader
        self.work, self.output, self.results = work, output, results
        self.progress = Progress()
        minutes = settings.minutes
        self.deadline = settings.began + 60 * minutes if minutes else math.inf
        self.servers = []
        self.histograms = False
        results.update({"scenarios": [], "curves": [], "sweeps": [], "checks": [], "loaded": {}, "restarts": {}})

    # The whole of it.

    def run(self):
        stages = [stage for stage in scenarios.STAGES if self.wanted(stage)]
        stages = self.fit(stages)
        print(f"about {clock(self.progress.planned)} planned, without sweeps", file=sys.stderr)
        for stage in stages:
            self.run_stage(stage)
        for sweep in scenarios.SWEEPS:
            if f"{sweep.name}-sweep" in self.settings.only or self.settings.form == "full" and not self.settings.only:
                sweeps.run(self, sweep)

    def fit(self, stages):
        """Plans the stages. What would take longer than there is time for gets shorter runs, then fewer rounds; in the
        end the last stages are left out. Returns the others."""
        settings, stages = self.settings, list(stages)
        while True:
            self.progress.planned = 0.0
            for stage in stages:
                self.plan(stage)
            if self.progress.planned <= PLANNED_SHARE * (self.deadline - time.monotonic()):
                return stages
            if settings.seconds > SECONDS_WISHED:
                settings.seconds = max(SECONDS_WISHED, 0.9 * settings.seconds)
            elif settings.rounds > 1:
                settings.rounds -= 1
            elif settings.seconds > SECONDS_MIN:
                settings.seconds = max(SECONDS_MIN, 0.9 * settings.seconds)
            elif len(stages) > 1:
                self.leave_out(stages.pop())
            else:
                return stages
            # The report tells what was done.
            self.results["settings"].update(rounds=settings.rounds, seconds=settings.seconds)

    def wanted(self, thing):
        """Whether a scenario or any of a stage is among those asked for; all are when none is named."""
        if not self.settings.only:
            return True
        names = {thing.name, *(each.name for each in getattr(thing, "scenarios", ()))}
        names |= {f"{each.name}-curve" for each in getattr(thing, "curves", ())}
        names |= {scenarios.FAILOVER_NAME} if thing.members > 1 else set()
        return bool(names & set(self.settings.only))

    def plan(self, stage):
        per_run, servers = self.seconds_of_run(self.settings.seconds), len(self.programs)
        self.progress.plan(self.fill_seconds(stage) * servers)
        for scenario in stage.scenarios:
            if self.is_run(stage, scenario):
                rounds, seconds = self.extent(scenario)
                self.progress.plan(self.seconds_of_run(seconds) * rounds * servers)
        for curve in filter(self.is_drawn, stage.curves):
            self.progress.plan(per_run * len(self.shares_of(curve)) * servers)
        if stage.measures_store:
            self.progress.plan(RESTARTS_SECONDS * servers)
        if self.is_killed(stage):
            self.progress.plan(FAILOVER_SECONDS * FAILOVERS[self.settings.form] * servers)

    def seconds_of_run(self, seconds):
        # Warming up, starting the load, and coming to rest after the run before.
        return 1.2 * seconds + 2

    def fill_seconds(self, stage):
        return 1 + self.keys_of(stage) / 20_000

    def is_run(self, stage, scenario):
        only = self.settings.only
        if not only or scenario.name in only or stage.name in only:
            return True
        # What arrives at a share of a maximum needs the maximum.
        bases = {each.share_of for each in stage.scenarios if each.name in only}
        bases |= {curve.of for curve in stage.curves if f"{curve.name}-curve" in only}
        return scenario.name in bases

    def is_drawn(self, curve):
        return not self.settings.only or f"{curve.name}-curve" in self.settings.only

    def is_killed(self, stage):
        only = set(self.settings.only)
        return stage.members > 1 and (not only or bool(only & {stage.name, scenarios.FAILOVER_NAME}))

    def extent(self, scenario):
        """Rounds and seconds: the form's, unless the scenario has its own; a smoke run has none of its own."""
        if self.settings.form == "quick":
            return self.settings.rounds, self.settings.seconds
        if self.settings.form == "full":
            if scenario.full_seconds:
                return 1, scenario.full_seconds
            return self.settings.rounds, scenario.seconds or self.settings.seconds
        return min(scenario.rounds or self.settings.rounds, self.settings.rounds), (
            scenario.seconds or self.settings.seconds
        )

    def shares_of(self, curve):
        return curve.shares[1::2] if self.settings.form == "quick" else curve.shares

    def keys_of(self, stage):
        if self.settings.form == "quick":
            return stage.quick_keys
        return min(stage.keys, self.settings.keys or stage.keys)

    # Stages.

    def has_time(self, seconds):
        return time.monotonic() + seconds < self.deadline

    def run_stage(self, stage):
        keys = self.keys_of(stage)
        if not self.has_time(self.fill_seconds(stage) * len(self.programs)):
            return self.leave_out(stage)
        with self.directory() as path, self.started(path, kind=Cluster if stage.members > 1 else Server):
            if stage.measures_store or stage.members > 1:
                self.check_hashes(stage.value_bytes)
            loaded = self.fill(keys, stage.value_bytes, self.fill_seconds(stage))
            if stage.members > 1:
                self.check_counts()
            if stage.measures_store:
                self.results["loaded"] = loaded
                self.measure_restarts(path)
            for scenario in stage.scenarios:
                if self.is_run(stage, scenario):
                    self.run_scenario(stage, scenario, keys)
            for curve in filter(self.is_drawn, stage.curves):
                self.run_curve(stage, curve, keys)
            if stage.measures_store and self.settings.form == "full" and not self.settings.only:
                self.measure_versions(keys, stage.value_bytes)
            if stage.members > 1:
                self.check_members()
            if self.is_killed(stage):
                self.measure_failovers()

    def leave_out(self, stage):
        left_out = {"stage": stage.name, "status": "left out", "reason": NO_TIME, "runs": {}}
        self.results["scenarios"] += [{"name": e.name, "title": e.title, **left_out} for e in stage.scenarios]

    def directory(self):
        return TemporaryDirectory(self.work)

    def started(self, path, names=None, cores=1, kind=Server):
        """All servers, or those of some names, each on so many cores."""
        return Started(self, path, names or list(self.programs), cores, kind)

    def fill(self, keys, value_bytes, estimate=0.0, depth=scenarios.DEEP):
        """Puts all keys once on each server; what it took, and the store's size."""
        found = {}
        for server in self.servers:
            before = grpc.revision(server.address)
            flags = ("--keys", keys, "--value-bytes", value_bytes, *depth)
            seen = server.load("fill", *flags, seconds_max=RUN_SECONDS_MAX + keys / 200)
            after = grpc.count(server.address)
            risen = after["revision"] - before
            self.check(f"{keys} keys put into {server.name}: the revision rose by {risen}", risen == keys)
            self.check(f"{server.name} holds {after['keys']} of {keys} keys", after["keys"] == keys)
            found[server.name] = {"keys": after["keys"], "fill_rate": seen["rate"]}
            self.progress.step(estimate, f"{keys} keys into {server.name}: {seen['rate']:.0f}/s")
        settle(self.servers, 2 * self.settings.settle_seconds)
        for server in self.servers:
            found[server.name].update(server.memory())
            found[server.name].update(server.file_bytes())
        self.save()
        return found

    def check_hashes(self, value_bytes):
        """The same puts, one at a time: the same history, so the same HashKV, by every member of a cluster."""
        hashes = {}
        for server in self.servers:
            flags = ("--keys", SAME_HISTORY_KEYS, "--value-bytes", value_bytes, *scenarios.SHALLOW)
            server.load("fill", *flags)
            hashes[server.name] = server.hashes()
        said = "; ".join(f"{name} {spoken_hashes(*each)}" for name, each in hashes.items())
        same = len({pair for each in hashes.values() for pair in zip(*each, strict=True)}) == 1
        self.check(f"HashKV after the same {SAME_HISTORY_KEYS} puts: {said}", same)

    def check_counts(self):
        """That what every server was asked alike has left as much on each."""
        counts = {server.name: grpc.count(server.address) for server in self.servers}
        said = "; ".join(f"{name} {each['keys']} at revision {each['revision']}" for name, each in counts.items())
        first = next(iter(counts.values()))
        self.check(f"keys after the same requests: {said}", all(each == first for each in counts.values()))

    def measure_restarts(self, path):
        for server in self.servers:
            expected = grpc.count(server.address)
            other, after_kill = server.copy(path / "copy")
            try:
                self.check(
                    f"{server.name} has all its keys and its revision after kill -9",
                    grpc.count(other.address) == expected,
                )
                times = [other.restart() for _ in range(self.settings.rounds)]
                self.check(
                    f"{server.name} has all its keys and its revision after a restart",
                    grpc.count(other.address) == expected,
                )
            finally:
                other.stop(signal.SIGKILL)
                shutil.rmtree(path / "copy", ignore_errors=True)
            found = {"restart_seconds": times, "restart_after_kill_seconds": [after_kill]}
            self.results["restarts"][server.name] = found
            self.progress.step(
                RESTARTS_SECONDS, f"{server.name} restarts in {min(times):.2f} s, after kill -9 in {after_kill:.2f} s"
            )
        self.save()

    def check_members(self):
        """That a cluster's members have the same after the load."""
        for server in self.servers:
            revisions, hashes = server.hashes()
            said = f"HashKV of the members after the load: {server.name} {spoken_hashes(revisions, hashes)}"
            self.check(said, len(set(revisions)) == 1 and len(set(hashes)) == 1)

    def measure_failovers(self):
        """Kills every cluster's leader many times, in turn; before the next kill all members have the same again."""
        times = self.results["failovers"] = {server.name: [] for server in self.servers}
        for number in range(1, FAILOVERS[self.settings.form] + 1):
            if not self.has_time(FAILOVER_SECONDS * len(self.servers)):
                break
            for server in self.servers:
                settle(self.servers, FAILOVER_SETTLE_SECONDS)
                found = server.fail_over(number)
                times[server.name].append(found.gap_seconds)
                self.check(f"{server.name} after kill {number} of its leader: {found.said()}", found.holds())
                gap = f"{found.gap_seconds:.2f} s without writes after its leader's end"
                self.progress.step(FAILOVER_SECONDS, f"failover {number}: {server.name}: {gap}")
            self.save()

    def measure_versions(self, keys, value_bytes):
        """Memory with more versions of each key: on the same servers after the rest would be unequal, so anew."""
        self.stop()
        with self.directory() as path, self.started(path):
            for _ in range(scenarios.VERSIONS):
                loaded = self.fill(keys, value_bytes)
            self.results["versions"] = loaded

    # Scenarios.

    def run_scenario(self, stage, scenario, keys):
        rounds, seconds = self.extent(scenario)
        runs = {server.name: [] for server in self.servers}
        about = {"name": scenario.name, "title": scenario.title, "stage": stage.name, "keys": keys, "runs": runs}
        about.update({"value_bytes": stage.value_bytes, "seconds": seconds, "status": "measured"})
        self.results["scenarios"].append(about)
        rate = self.offered(scenario)
        if scenario.share_of and rate is None:
            about.update(status="not available", reason=f"{scenario.share_of} was not measured")
            return self.skip(scenario, rounds, seconds, about)
        if not self.has_time(self.seconds_of_run(seconds) * rounds * len(self.servers)):
            about.update(status="left out", reason=NO_TIME)
            return self.skip(scenario, rounds, seconds, about)
        flags = (*scenario.flags, *(("--rate", rate) if rate else ()))
        if self.settings.form == "full":
            flags = (*flags, *scenario.full_flags)
        about.update(offered=rate, command=command_line(scenario, keys, stage.value_bytes, seconds, flags))
        try:
            for server in self.servers_of(scenario):
                for command, prepare in scenario.prepare:
                    server.load(command, "--keys", keys, "--value-bytes", stage.value_bytes, *prepare)
            for number in range(rounds):
                for server in self.servers_of(scenario):
                    run = self.measure(server, scenario, keys, stage.value_bytes, seconds, number, flags)
                    runs[server.name].append(run)
                    self.progress.step(self.seconds_of_run(seconds), f"{scenario.name}: {server.name}: {spoken(run)}")
        except NotAvailable as lack:
            about.update(status="not available", reason=f"not in this ringd-bench ({lack})", runs={})
            return self.skip(scenario, rounds, seconds, about)
        except (Failure, grpc.CallFailed) as failure:
            # Rounds that are not the same for all servers have no figures.
            about.update(status="failed", reason=str(failure), runs={})
            self.check(f"{scenario.name}: {failure}", False)
            self.revive()
        self.save()

    def skip(self, scenario, rounds, seconds, about):
        weight = self.seconds_of_run(seconds) * rounds * len(self.programs)
        self.progress.step(weight, f"{scenario.name}: {about['status']}: {about['reason']}")
        self.save()

    def servers_of(self, scenario):
        return [server for server in self.servers if self.version(server) >= scenario.since]

    def version(self, server):
        return tuple(int(part) for part in self.results["servers"][server.name]["version"].split(".")[:2])

    def offered(self, scenario):
        """Calls a second that arrive: the share of what the first reference reached."""
        if not scenario.share_of:
            return None
        base = summary.figures(self.results).get(scenario.share_of, {}).get(self.results["references"][0])
        return max(1, round(base["rate"] * scenario.share)) if base else None

    def measure(self, server, scenario, keys, value_bytes, seconds, number, flags):
        """One run, with what it did to the server's memory; its work is checked."""
        settle(self.servers, self.settings.settle_seconds)
        name = f"{scenario.name}-{number + 1}"
        if scenario.usual_flags:
            flags = ("--keys", keys, "--seed", number + 1, *flags)
        flags = ("--value-bytes", value_bytes, "--seconds", seconds, *flags)
        if self.histograms:
            plain = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in server.name)
            flags = (*flags, "--histogram", self.output / "hdr" / f"{name}-{plain}.hdr")
        before, resident = grpc.revision(server.address), server.memory()["rss_bytes"]
        server.forget_peak()
        with Growth(server, seconds) as growth:
            where = {"follower": True} if scenario.follower else {}
            run = server.load(scenario.command, *flags, seconds_max=RUN_SECONDS_MAX + 10 * seconds, **where)
        growth.add_to(run.get("series", []))
        memory = server.memory()
        risen = grpc.revision(server.address) - before
        run["extra_memory_bytes"] = max(0, memory["peak_bytes"] - resident)
        run["peak_bytes"] = memory["peak_bytes"]
        done, said = verify(run, risen)
        self.check(f"{name} on {server.name}: {said}", done)
        return run

    # Curves.

    def run_curve(self, stage, curve, keys):
        best = summary.figures(self.results).get(curve.of, {})
        points = {server.name: [] for server in self.servers}
        about = {"name": curve.name, "title": curve.title, "status": "measured", "points": points}
        self.results["curves"].append(about)
        scenario = scenarios.Scenario(f"{curve.name}-curve", curve.title, curve.command)
        for number, share in enumerate(self.shares_of(curve)):
            for server in self.servers:
                weight = self.seconds_of_run(self.settings.seconds)
                if server.name not in best or not self.has_time(weight):
                    lack = f"{curve.of} was not measured" if server.name not in best else NO_TIME
                    about.update(status="not available", reason=lack)
                    self.progress.step(weight, f"{curve.name}-curve: {about['reason']} on {server.name}")
                    continue
                rate = max(1, round(best[server.name]["rate"] * share))
                flags = (*curve.flags, "--rate", rate)
                try:
                    extent = (keys, stage.value_bytes, self.settings.seconds)
                    run = self.measure(server, scenario, *extent, number, flags)
                except NotAvailable as lack:
                    about.update(status="not available", reason=f"not in this ringd-bench ({lack})")
                    skipped = weight * len(self.servers) * len(self.shares_of(curve))
                    return self.progress.step(skipped, f"{curve.name}-curve: {about['reason']}")
                except (Failure, grpc.CallFailed) as failure:
                    self.check(f"{curve.name}-curve at {rate}/s on {server.name}: {failure}", False)
                    self.revive()
                    continue
                points[server.name].append({"offered": rate, **run})
                self.progress.step(weight, f"{curve.name} at {rate}/s: {server.name}: {spoken(run)}")
        self.save()

    # Housekeeping.

    def check(self, text, holds):
        self.results["checks"].append({"check": text, "holds": bool(holds)})
        if not holds:
            print(f"CHECK FAILED: {text}", file=sys.stderr, flush=True)

    def revive(self):
        """After a failed run the others go on; a server that is gone ends the stage."""
        for server in self.servers:
            if server.has_ended():
                raise Failure(f"{server.name} has ended; its log ends with:\n{server.log_end()}")

    def stop(self):
        for server in self.servers:
            server.stop()
        self.servers = []

    def save(self):
        partial = self.output / "results.json.partial"
        partial.write_text(json.dumps(self.results, indent=1))
        partial.rename(self.output / "results.json")


class TemporaryDirectory(tempfile.TemporaryDirectory):
    """On the disk of the build, not in /tmp, which is memory on many machines."""

    def __init__(self, work):
        super().__init__(prefix="compare-", dir=work, ignore_cleanup_errors=True)

    def __enter__(self):
        return Path(super().__enter__())


class Growth:
    """How a data directory grows in a run that takes long: looked at each second, beside the load."""

    def __init__(self, server, seconds):
        self.server, self.samples = server, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True) if seconds >= LONG_SECONDS else None

    def __enter__(self):
        if self.thread:
            self.thread.start()
        return self

    def look(self):
        while not self.over.wait(1):
            self.samples.append(self.server.file_bytes()["file_bytes"])

    def __exit__(self, *_):
        self.over.set()
        if self.thread:
            self.thread.join()

    def add_to(self, series):
        """The last samples belong to the measured part's seconds; those before them to the warm-up."""
        for second, sample in zip(reversed(series), reversed(self.samples), strict=False):
            second["file_bytes"] = sample


class Started:
    """Servers, started and serving; stopped at the end."""

    def __init__(self, comparison, path, names, cores, kind=Server):
        self.comparison, self.path, self.names, self.cores, self.kind = comparison, path, names, cores, kind

    def __enter__(self):
        comparison = self.comparison
        for name in self.names:
            program = comparison.programs[name]
            comparison.servers.append(self.kind(name, program, self.path, comparison.loader, cores=self.cores))
            about = comparison.results["servers"].setdefault(name, {})
            about.setdefault("command", relative(" ".join(comparison.servers[-1].command), self.path))
            try:
                comparison.servers[-1].await_ready()
            except Failure:
                comparison.stop()
                raise

    def __exit__(self, *_):
        self.comparison.stop()


def relative(text, *paths):
    """A command line without this machine's paths."""
    for path in paths:
        text = text.replace(str(path), "DIRECTORY")
    return text.replace(f"{ROOT}/", "")


def verify(run, risen):
    """Whether a run did its work, and words for it; `risen` is the store's revision by a call of our own."""
    if "revision_rose" not in run:
        # A load of watches, which sees to it itself that no event is lost, repeated or out of order.
        puts = run["puts_rate"] * run["seconds"]
        said = f"{run['calls']} events of {puts:.0f} puts, the revision rose by {risen} from before its warm-up"
        return run["calls"] > 0 and run["failed"] == 0 and risen >= max(round(puts), 1), said
    said = f"{run['calls']} calls, {run['failed']} failed, the revision rose by {risen}"
    if risen != run["revision_rose"]:
        said += f" where the load's calls make {run['revision_rose']}"
    return run["calls"] > 0 and run["failed"] == 0 and risen == run["revision_rose"], said


def spoken_hashes(revisions, hashes):
    """Of each member, or where they have the same, of all of them."""
    each = dict.fromkeys(f"{value:08x} at revision {revision}" for revision, value in zip(revisions, hashes, strict=True))
    return " and ".join(each)


def command_line(scenario, keys, value_bytes, seconds, flags):
    usual = ["--keys", keys] if scenario.usual_flags else []
    words = [scenario.command, *usual, "--value-bytes", value_bytes, "--seconds", seconds, *flags]
    return " ".join(["ringd-bench", *map(str, words)])


def spoken(run):
    run = summary.derive(run)
    p99 = f", p99 {run['p99_us'] / 1000:.2f} ms" if run.get("p99_us") else ""
    if "event_rate" in run:
        return f"{run['event_rate']:.0f} events/s{p99}"
    cpu = f", {run['server_cpu_us']:.1f} µs CPU each" if run.get("server_cpu_us") else ""
    return f"{run['rate']:.0f}/s{p99}{cpu}"


def probe(name, program, work, loader):
    """The etcd version that a program says it is, after seeing that it starts and serves."""
    with TemporaryDirectory(work) as path:
        server = Server(name, program, path, loader)
        try:
            server.await_ready()
            return grpc.status(server.address)["version"]
        except grpc.CallFailed as failure:
            raise Failure(f"{program}: {failure}") from failure
        finally:
            server.stop(signal.SIGKILL)
