"""The figures as text for the terminal and as Markdown for PERF.md."""

from . import summary
from .scenarios import METRICS, OF_SOME
from .summary import asked, reached


def number(value, digits=3):
    """Thin: three digits that count, thousands apart."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.{digits}g}"


def scaled(value, unit):
    """A figure with its unit: bytes as MiB, µs as ms or s when there are many."""
    if value is None:
        return "–"
    if unit == "B/s":
        return f"{number(value / 2**20)} MiB/s"
    if unit == "B":
        return f"{number(value / 2**20)} MiB"
    if unit == "µs" and value >= 1e6:
        return f"{number(value / 1e6)} s"
    if unit == "µs" and value >= 1e4:
        return f"{number(value / 1e3)} ms"
    if unit == "/s":
        return f"{number(value)}/s"
    return f"{number(value)} {unit}"


def show(value, metric):
    return scaled(value, METRICS[metric][1])


def main_rate(run):
    """What a scenario's throughput is best counted in."""
    return next((key for key in ("event_rate", "byte_rate") if run.get(key) and is_telling(run, key)), "rate")


def is_telling(run, key):
    # Every answer has bytes; only those of lists are what the call is for.
    return key == "event_rate" or run["byte_rate"] > 4096 * run["rate"]


def columns(run):
    rate = main_rate(run)
    shown = [show(run.get(rate), rate)]
    return shown + [show(run.get(key), key) for key in ("p50_us", "p90_us", "p99_us", "p999_us", "server_cpu_us")]


HEADINGS = ["throughput", "p50", "p90", "p99", "p99.9", "server CPU per call"]


def rows(results):
    """Of all measured scenarios: title, server, columns."""
    found = []
    measured = summary.figures(results)
    for scenario in results["scenarios"]:
        for server, run in measured.get(scenario["name"], {}).items():
            found.append([scenario["title"], server, *columns(run)])
    return found


MORE_HEADINGS = ["work", "figure", "server", "value"]


def more_rows(results):
    """What only some kinds of work have: title, figure, server, value."""
    found, measured = [], summary.figures(results)
    for scenario in results["scenarios"]:
        runs = measured.get(scenario["name"], {})
        for metric in OF_SOME:
            told = [(server, show(run[metric], metric)) for server, run in runs.items() if run.get(metric)]
            if main_rate(next(iter(runs.values()), {"rate": 0})) != metric:
                found += [[scenario["title"], METRICS[metric][0], server, value] for server, value in told]
    return found


def missing(results):
    """What was not measured, a line for each reason."""
    reasons = {}
    for each in [*results["scenarios"], *results["curves"]]:
        if each["status"] != "measured":
            reasons.setdefault(f"{each['status']}: {each['reason'].splitlines()[0]}", []).append(each["title"])
    return [f"{reason}: {'; '.join(titles)}" for reason, titles in reasons.items()]


def stored_rows(results, part="loaded"):
    """Of the loaded store: server, memory, data directory, restart, fill."""
    found = []
    for server, each in summary.stored(results, part).items():
        row = [server, show(each.get("rss_bytes"), "rss_bytes"), show(each.get("rss_anonymous_bytes"), "rss_bytes")]
        row += [show(each.get("file_bytes"), "file_bytes"), show(each.get("wal_bytes"), "file_bytes")]
        row += [show(each.get("restart_seconds"), "restart_seconds")]
        row += [show(each.get("restart_after_kill_seconds"), "restart_seconds")]
        found.append([*row, show(each.get("fill_rate"), "rate")])
    return found


FAILOVER_HEADINGS = ["server", "kills", "shortest", "median", "longest"]


def failover_rows(results):
    """Seconds without writes after a cluster's leader was killed."""
    found = []
    for server, times in results.get("failovers", {}).items():
        if times:
            told = summary.failovers(results)[server]
            spread = (min(times), told["failover_seconds"], told["failover_longest_seconds"])
            found.append([server, str(len(times)), *(show(value, "failover_seconds") for value in spread)])
    return found


STORED_HEADINGS = [
    "resident",
    "not from files",
    "data directory",
    "of it the log",
    "restart",
    "after kill -9",
    "filled at",
]


def goal_rows(results):
    """Scenario, metric, asked, then for each reference what was reached and whether that is enough."""
    found = []
    for goal in summary.goals(results):
        row = [goal["title"], goal["metric"], asked(goal)]
        for server in results["references"]:
            against = goal["against"].get(server)
            row.append(
                f"{reached(against['ratio'])} {'met' if against['met'] else 'MISSED'}" if against else "not measured"
            )
        found.append(row)
    alone = summary.write_alone(results)
    if alone:
        said = f"{number(alone['extra_us'])} µs {'met' if alone['met'] else 'MISSED'}"
        row = ["Durable puts, one at a time", "p50 on top of the write alone", f"≤ {alone['asked_us']} µs"]
        found.append([*row, said, *["–"] * (len(results["references"]) - 1)])
    return found


def machine_lines(results):
    """What a figure was measured on and with, a line each."""
    machine, settings = results["machine"], results["settings"]
    changed = ", with changes" if machine["changed"] else ""
    build = " (debug build)" if settings["debug"] else ""
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    when = f"{machine['time']}, commit {machine['commit'][:12]}{changed}{build}"
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {memory}, Linux {machine['kernel']}",
        f"disk: {machine['disk']['file_system']} on {machine['disk']['device']}; 4 KiB and fdatasync "
        f"{machine['sync']['p50_us']:.0f} µs at p50, {machine['sync']['p99_us']:.0f} µs at p99",
        f"{when}, load average {machine['load_at_start']:.1f}",
        f"{', '.join(server_names(results))}; {settings['rounds']} rounds in turn, {settings['seconds']:g} s each",
    ]
    if machine.get("write_alone_us"):
        lines.insert(
            2,
            f"4 KiB alone by ringd's own way of writing (RWF_DSYNC, a ring): {machine['write_alone_us']:.0f} µs at p50",
        )
    return lines


def server_names(results):
    return [
        *results["references"],
        f"{results['ours']} (answers as etcd {results['servers'][results['ours']]['version']})",
    ]


def commands(results):
    """Every command line, without this machine's paths."""
    lines = [results["settings"]["command"]]
    lines += [about["command"] for about in results["servers"].values() if "command" in about]
    return lines + [each["command"] for each in results["scenarios"] if each.get("command")]


def markdown_table(headings, lines):
    text = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    before = None
    for line in lines:
        # A scenario is named in its first line only.
        text.append("| " + " | ".join(["" if line[0] == before else line[0], *line[1:]]) + " |")
        before = line[0]
    return "\n".join(text)


def markdown(results):
    parts = ["\n".join(f"* {line}" for line in machine_lines(results))]
    parts.append("## Goals\n\nRingd's figure over the reference's.\n")
    parts.append(markdown_table(["work", "figure", "goal", *results["references"]], goal_rows(results)))
    parts.append("## Figures\n\nMedians of the rounds.\n")
    parts.append(markdown_table(["work", "server", *HEADINGS], rows(results)))
    if more_rows(results):
        parts.append("## What only some have\n")
        parts.append(markdown_table(MORE_HEADINGS, more_rows(results)))
    for part, title in (("loaded", "With the keys loaded"), ("versions", "With five versions of each key")):
        if results.get(part):
            parts.append(f"## {title}\n")
            parts.append(markdown_table(["server", *STORED_HEADINGS], stored_rows(results, part)))
    if failover_rows(results):
        parts.append("## Without writes after the leader's kill -9\n")
        parts.append(markdown_table(FAILOVER_HEADINGS, failover_rows(results)))
    for curve in results["curves"]:
        if any(curve["points"].values()):
            parts.append(f"## {curve['title']}\n")
            parts.append(
                markdown_table(["server", "offered", "carried", "p50", "p99", "server CPU"], curve_rows(curve))
            )
    for sweep in results["sweeps"]:
        parts.append(f"## {sweep['title']}\n")
        parts.append(markdown_table([sweep["unit"], "work", "server", *HEADINGS, "resident"], sweep_rows(sweep)))
    if missing(results):
        parts.append("## Not measured\n\n" + "\n".join(f"* {line}" for line in missing(results)))
    checks = results["checks"]
    failed = [check["check"] for check in checks if not check["holds"]]
    said = f"{len(checks) - len(failed)} of {len(checks)} checks hold (results.json has them all)."
    parts.append("## Checks\n\n" + "\n".join([said, *(f"* FAILED: {text}" for text in failed)]))
    parts.append("## Commands\n\n```sh\n" + "\n".join(commands(results)) + "\n```")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def curve_rows(curve):
    return [
        [
            server,
            show(point["offered"], "rate"),
            *(show(point.get(k), k) for k in ("rate", "p50_us", "p99_us", "server_cpu_us")),
        ]
        for server, points in curve["points"].items()
        for point in points
    ]


def sweep_rows(sweep):
    found = []
    for row in sweep["rows"]:
        if row.get("reason"):
            found.append([number(row["value"]), f"left out: {row['reason'].splitlines()[0]}", *["–"] * 8])
        for server, about in row["servers"].items():
            for name, runs in about.get("runs", {}).items():
                resident = show(about.get("rss_bytes"), "rss_bytes")
                run = summary.median(runs)
                if run.get("refused_share"):
                    name += f" ({run['refused_share']:.1%} refused)"
                found.append([number(row["value"]), name, server, *columns(run), resident])
            for name, reason in about.get("failed", {}).items():
                found.append([number(row["value"]), name, server, f"failed: {reason.splitlines()[0]}", *["–"] * 6])
    return found


def text_table(headings, lines):
    widths = [max(len(str(line[at])) for line in [headings, *lines]) for at in range(len(headings))]
    names = 2
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < names else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in [headings, *lines]
    )


def terminal(results):
    parts = ["\n".join(machine_lines(results)), text_table(["work", "server", *HEADINGS], rows(results))]
    if results["loaded"]:
        parts.append(text_table(["server", *STORED_HEADINGS], stored_rows(results)))
    if failover_rows(results):
        parts.append(text_table(FAILOVER_HEADINGS, failover_rows(results)))
    measured = [row for row in goal_rows(results) if any(cell not in ("not measured", "–") for cell in row[3:])]
    if results["settings"]["form"] == "quick":
        parts.append("a smoke run: its figures mean nothing, and the goals are not judged")
    elif measured:
        parts.append(text_table(["work", "figure", "goal", *results["references"]], measured))
    if missing(results):
        parts.append("\n".join(missing(results)))
    checks = results["checks"]
    parts.append(f"{sum(check['holds'] for check in checks)} of {len(checks)} checks hold")
    return "\n\n".join(part for part in parts if part)
