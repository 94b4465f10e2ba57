"""From results.json to figures: medians of rounds, ratios, goals. Pure functions."""

import statistics

from . import scenarios
from .scenarios import METRICS


def derive(run):
    """A run with the figures that follow from others."""
    run = dict(run)
    seconds = run.get("seconds") or 0
    if "puts_rate" in run:
        # A load of watches: its calls are events.
        run["event_rate"] = run["rate"]
    if run.get("bytes") and seconds:
        run["byte_rate"] = run["bytes"] / seconds
    for name, beside in run.pop("beside", {}).items():
        run.update({f"{name}_{key}": value for key, value in beside.items()})
    if run.get("drained_seconds") is not None:
        run["drained_us"] = 1e6 * run["drained_seconds"]
    return run


def median(runs):
    """One run that stands for several: the median of each figure; of the distribution, at each quantile."""
    runs = [derive(run) for run in runs]
    found = {}
    for key in runs[0]:
        values = [run.get(key) for run in runs]
        if all(isinstance(value, (int, float)) for value in values):
            found[key] = statistics.median(values)
    distributions = [latency(run) for run in runs]
    if distributions[0]:
        by_quantile = {}
        for quantile, value in (point for points in distributions for point in points):
            by_quantile.setdefault(quantile, []).append(value)
        # Those that not every round reached are left out.
        whole = [(q, statistics.median(v)) for q, v in sorted(by_quantile.items()) if len(v) == len(runs)]
        found["latency"] = [list(point) for point in whole]
    found["series"] = next((run["series"] for run in runs if run.get("series")), [])
    return found


def latency(run):
    """The points of the distribution that a call stands behind; for want of a distribution, those among the figures."""
    if run.get("latency"):
        rarest = 1 / max(run.get("calls", 0), 1)
        return [(quantile, value) for quantile, value in run["latency"] if value > 0 and 1 - quantile >= rarest]
    named = ((0.5, "p50_us"), (0.9, "p90_us"), (0.99, "p99_us"), (0.999, "p999_us"))
    return [(quantile, run[key]) for quantile, key in named if run.get(key)]


def figures(results):
    """For each measured scenario's name: {server: the median of its runs}."""
    found = {}
    for scenario in results["scenarios"]:
        runs = {server: median(each) for server, each in scenario["runs"].items() if each}
        if runs:
            found[scenario["name"]] = runs
    return found


def stored(results, part="loaded"):
    """{server: figures} of the loaded store: memory, file size, restart times."""
    found = {server: dict(each) for server, each in results.get(part, {}).items()}
    if part == "loaded":
        for server, each in results.get("restarts", {}).items():
            for key, values in each.items():
                found.setdefault(server, {})[key] = statistics.median(values)
    return found


def failovers(results):
    """{server: seconds without writes after its leader was killed, the median and the longest}."""
    times = results.get("failovers", {})
    return {
        server: {"failover_seconds": statistics.median(each), "failover_longest_seconds": max(each)}
        for server, each in times.items()
        if each
    }


def ratio(ours, theirs, metric):
    """Ours over theirs; None where either is missing or theirs is nothing."""
    a, b = ours.get(metric), theirs.get(metric)
    return a / b if a is not None and b else None


def verdict(name, title, goal, found, results):
    """A goal against each reference: what was reached, and whether that is enough."""
    ours = results["ours"]
    against = {}
    for server in results["references"]:
        reached = ratio(found.get(ours, {}), found.get(server, {}), goal.metric)
        if reached is None:
            continue
        met = reached >= goal.at_least if goal.at_least else reached <= goal.at_most
        against[server] = {"ratio": reached, "met": met}
    return {
        "name": name,
        "title": title,
        "metric": METRICS[goal.metric][0],
        "at_least": goal.at_least,
        "at_most": goal.at_most,
        "against": against,
    }


def goals(results):
    """All goals, those too that nothing was measured for (`against` is empty then)."""
    measured, judged = figures(results), []
    for stage in scenarios.STAGES:
        for scenario in stage.scenarios:
            for goal in scenario.goals:
                judged.append(verdict(scenario.name, scenario.title, goal, measured.get(scenario.name, {}), results))
    for goal in scenarios.LOADED_GOALS:
        judged.append(verdict(goal.title, goal.title.capitalize(), goal, stored(results), results))
    if results.get("failovers"):
        for goal in scenarios.FAILOVER_GOALS:
            judged.append(verdict("failover", goal.title.capitalize(), goal, failovers(results), results))
    if results.get("versions"):
        goal = scenarios.VERSIONS_GOAL
        judged.append(verdict(goal.title, goal.title.capitalize(), goal, stored(results, "versions"), results))
    return judged


def write_alone(results):
    """The goal of one client against the disk: µs of a put on top of the same write alone, or None."""
    alone = results["machine"].get("write_alone_us")
    put = figures(results).get("put-1", {}).get(results["ours"])
    if not alone or not put:
        return None
    extra = put["p50_us"] - alone
    asked = scenarios.ALONE_EXTRA_US
    return {"alone_us": alone, "put_us": put["p50_us"], "extra_us": extra, "asked_us": asked, "met": extra <= asked}


def asked(goal):
    """A goal's threshold for people."""
    if goal["at_least"]:
        return f"≥ {goal['at_least']:g} ×"
    return f"≤ 1/{1 / goal['at_most']:g}" if goal["at_most"] < 1 else f"≤ {goal['at_most']:g} ×"


def reached(value):
    """A ratio for people: as a multiple, or as a part of one."""
    if value >= 1:
        return f"{value:.3g} ×" if value < 100 else f"{value:,.0f} ×".replace(",", " ")
    return f"1/{1 / value:.3g}" if value > 0 else "0"
