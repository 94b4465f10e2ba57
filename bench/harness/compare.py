"""Compares ringd with etcd on this machine: the same load on each server in turn, and a report with pictures.

Servers run on core 0 and the load on core 1, with the same flags and the same durability, in rounds A B A B. That
the work was really done is checked on every server: revisions, counts, hashes, nothing failed. Without --etcd the
references are etcd 3.5.1 (from PyPI) and, where Go is installed, etcd 3.7.1 (built from its module).

What comes out, in target/compare/<time>/: report.html, tables.md, results.json, and hdr/ with each run's latencies.
The default form takes less than twenty minutes: when the builds took much of them, there are fewer rounds and
shorter runs. Ends with 1 when a check failed; goals that are missed are shown, and are no failure.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import resource
import shutil
import signal
import subprocess
import sys

from . import report, scenarios, tables
from .machine import ROOT, TARGET, Failure, disk, machine, memory_bytes
from .runs import Comparison, Settings, TemporaryDirectory, probe

FORMS = {
    # Seconds of a run, rounds, seconds to wait for quiet before a run, minutes for all of it, the builds included.
    "quick": (0.3, 1, 0.5, None),
    "default": (2.5, 2, 4.0, 19),
    "full": (5.0, 3, 10.0, None),
}
FREE_BYTES = {"quick": 2 << 30, "default": 12 << 30, "full": 20 << 30}
OURS = "ringd"


def parse():
    epilog = "scenarios: " + ", ".join(each.name for stage in scenarios.STAGES for each in stage.scenarios)
    epilog += f"\n{scenarios.FAILOVER_NAME}: kills of the leader of three members, a part of {scenarios.CLUSTER.name}"
    epilog += "\nsweeps: " + ", ".join(f"{each.name}-sweep" for each in scenarios.SWEEPS)
    parser = argparse.ArgumentParser(
        prog="scripts/compare.sh",
        description=__doc__,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quick", action="store_true", help="a smoke run of about a minute; its figures mean nothing")
    form.add_argument(
        "--full", action="store_true", help="with sweeps of keys, values, clients, watchers, history, cores: hours"
    )
    parser.add_argument(
        "--etcd", action="append", type=pathlib.Path, metavar="PATH", help="a reference; may be repeated"
    )
    parser.add_argument("--seconds", type=float, help="of each run (2.5; full: 5)")
    parser.add_argument("--rounds", type=int, help="of each server in turn (2; full: 3)")
    parser.add_argument("--keys", type=int, help="at most so many keys (1000000)")
    parser.add_argument(
        "--minutes", type=float, help="for all but sweeps, builds included (19; full: as long as it takes)"
    )
    parser.add_argument("--sweep-minutes", type=float, default=45, help="for each sweep, at most (45)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a scenario, a stage or a sweep; may be repeated"
    )
    parser.add_argument("--output", type=pathlib.Path, help="folder for the results instead of target/compare/<time>")
    parser.add_argument("--debug", action="store_true", help="debug builds, for a smoke run without a release build")
    parser.add_argument("--ringd", type=pathlib.Path, metavar="PATH", help="instead of building it")
    parser.add_argument("--loader", type=pathlib.Path, metavar="PATH", help="a ringd-bench instead of building it")
    parser.add_argument(
        "--render", type=pathlib.Path, metavar="RESULTS", help="only the report of an earlier results.json"
    )
    arguments = parser.parse_args()
    for path in [*(arguments.etcd or []), arguments.ringd, arguments.loader]:
        if path is not None and not os.access(path, os.X_OK):
            parser.error(f"{path} is not a program that can be run")
    names = {stage.name for stage in scenarios.STAGES}
    names |= {each.name for stage in scenarios.STAGES for each in stage.scenarios}
    names |= {f"{each.name}-curve" for stage in scenarios.STAGES for each in stage.curves}
    names |= {f"{each.name}-sweep" for each in scenarios.SWEEPS} | {scenarios.FAILOVER_NAME}
    for name in arguments.only:
        if name not in names:
            parser.error(f"there is no scenario {name!r}; there are {', '.join(sorted(names))}")
    return arguments


def settings_of(arguments):
    form = "quick" if arguments.quick else "full" if arguments.full else "default"
    seconds, rounds, quiet, minutes = FORMS[form]
    return Settings(
        form=form,
        seconds=arguments.seconds or seconds,
        rounds=arguments.rounds or rounds,
        keys=arguments.keys,
        settle_seconds=quiet,
        only=tuple(arguments.only),
        sweep_minutes=arguments.sweep_minutes,
        minutes=arguments.minutes or minutes,
    )


def build(arguments):
    """Builds what was not given; the programs of ringd, of the load, and of the disk's latency or None."""
    folder = TARGET / ("debug" if arguments.debug else "release")
    if arguments.ringd and arguments.loader:
        latency = folder / "disk_latency"
        return arguments.ringd.resolve(), arguments.loader.resolve(), latency if latency.exists() else None
    if not shutil.which("cargo"):
        raise Failure("cargo is not installed, and ringd is built with it; or pass --ringd and --loader")
    say(f"building ringd and its load generator ({'debug' if arguments.debug else 'release'})")
    command = ["cargo", "build", "--quiet", "--locked", *([] if arguments.debug else ["--release"])]
    command += ["-p", "ringd", "-p", "ringd-bench", "--bin", "ringd", "--bin", "ringd-bench", "--bin", "disk_latency"]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise Failure("the build failed; what cargo said is above")
    ringd, loader = arguments.ringd or folder / "ringd", arguments.loader or folder / "ringd-bench"
    return ringd.resolve(), loader.resolve(), folder / "disk_latency"


def references(arguments):
    """The programs to compare with."""
    if arguments.etcd:
        return [path.resolve() for path in arguments.etcd]
    old, new = TARGET / "etcd-3.5.1/etcd", TARGET / "reference/reference"
    if subprocess.run([ROOT / "scripts/setup-tests", "etcd-3.5.1"]).returncode != 0:
        raise Failure("etcd 3.5.1 could not be fetched; pass an etcd of yours with --etcd PATH")
    if shutil.which("go") and subprocess.run([ROOT / "scripts/setup-tests", "reference"]).returncode != 0:
        say("etcd 3.7.1 could not be built: compared with 3.5.1 only")
    if not new.exists():
        say("Go is not installed, so etcd 3.7.1 is not built: compared with 3.5.1 only")
    return [path for path in (old, new) if path.exists()]


def name_all(ringd, others, work, loader):
    """{name: program} in the order of the runs, the references first; the versions they say; ringd's starts too."""
    programs, versions = {}, {}
    for program in others:
        version = probe("etcd", program, work, loader)
        name, number = f"etcd {version}", 2
        while name in programs:
            name, number = f"etcd {version} ({number})", number + 1
        programs[name], versions[name] = program, version
    versions[OURS] = probe(OURS, ringd, work, loader)
    programs[OURS] = ringd
    return programs, versions


def write_alone(program, directory):
    """µs of 4 KiB written durably, one at a time, by ringd's own method; None when that cannot be told."""
    if program is None or not program.exists():
        return None
    command = ["taskset", "-c", "0", str(program), str(directory), "600", "4096"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = next((each for each in run.stdout.splitlines() if each.startswith("ring: write RWF_DSYNC")), None)
    return float(line.split()[-4]) if line else None


def prepare(work, form):
    if os.cpu_count() < 2 or not {0, 1} <= os.sched_getaffinity(0):
        raise Failure("the server needs core 0 and the load core 1, and this process may not run on both")
    work.mkdir(parents=True, exist_ok=True)
    free = disk(work)["free_bytes"]
    if free < FREE_BYTES[form]:
        raise Failure(f"{FREE_BYTES[form] >> 30} GiB have to be free under {work}, and {free >> 30} GiB are")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def about(settings, arguments, directory, latency):
    facts = machine(directory)
    facts.update({"disk": disk(directory), "memory_bytes": memory_bytes()[0], "python": platform.python_version()})
    facts["write_alone_us"] = write_alone(latency, directory)
    if facts["load_at_start"] > 0.5:
        say(f"the machine is busy (load average {facts['load_at_start']:.1f}): the figures will be worth little")
    return {
        "format": 1,
        "machine": facts,
        "settings": {
            **{key: value for key, value in vars(settings).items() if key != "began"},
            "debug": arguments.debug,
            "command": " ".join(["scripts/compare.sh", *sys.argv[1:]]),
        },
    }


def write(results, output):
    (output / "tables.md").write_text(tables.markdown(results))
    (output / "report.html").write_text(report.page(results))


def compare(arguments):
    settings = settings_of(arguments)
    work = TARGET / "tmp"
    prepare(work, settings.form)
    ringd, loader, latency = build(arguments)
    others = references(arguments)
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H-%M-%SZ")
    output = (arguments.output or TARGET / "compare" / stamp).resolve()
    (output / "hdr").mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(work) as directory:
        results = about(settings, arguments, directory, latency)
    programs, versions = name_all(ringd, others, work, loader)
    results["ours"], results["references"] = OURS, [name for name in programs if name != OURS]
    results["servers"] = {name: {"version": version} for name, version in versions.items()}
    say(f"comparing {', '.join(programs)}; results in {output}")
    comparison = Comparison(settings, programs, loader, work, output, results)
    usage = subprocess.run([loader], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    comparison.histograms = "--histogram" in usage
    try:
        comparison.run()
    except (Failure, KeyboardInterrupt):
        say(f"not finished; what there is: {output / 'report.html'}")
        results["unfinished"] = True
        raise
    finally:
        comparison.save()
        write(results, output)
    print(tables.terminal(results))
    print(f"\nreport: {output / 'report.html'}\ntables: {output / 'tables.md'}")
    return 0 if all(check["holds"] for check in results["checks"]) else 1


def say(text):
    print(f"compare: {text}", file=sys.stderr, flush=True)


def main():
    arguments = parse()
    if arguments.render:
        output = (arguments.output or arguments.render.parent).resolve()
        write(json.loads(arguments.render.read_text()), output)
        print(f"report: {output / 'report.html'}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        return compare(arguments)
    except Failure as failure:
        say(failure)
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
