"""The report: one HTML page that needs nothing else, with light and dark colours."""

import pathlib
from html import escape
from math import log10

from . import scenarios, summary, tables
from .charts import Axis, Line, bars, lines, reach
from .scenarios import METRICS
from .tables import number, show

HERE = pathlib.Path(__file__).resolve().parent
# What the page opens with: a scenario's or the store's figure against the first reference.
TILES = (
    ("put", "rate", "durable puts per second"),
    ("get", "rate", "linearizable gets per second"),
    ("mixed", "rate", "half puts, half gets per second"),
    ("put", "server_cpu_us", "CPU for a put"),
    ("put-same-load", "p99_us", "p99 of puts under the same load"),
    (None, "rss_bytes", "memory with the keys loaded"),
    (None, "restart_seconds", "time to restart"),
)
# From here on a peak of memory is shown.
PEAK_BYTES_MIN = 16 << 20
MARKED_QUANTILES = (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)


def page(results):
    """The whole page of a results.json."""
    sections = [
        opening(results),
        goals(results),
        throughput(results),
        distributions(results),
        curves(results),
        time_series(results),
        store(results),
        failovers(results),
        sweeps(results),
        all_figures(results),
        checks(results),
    ]
    title = f"ringd against {' and '.join(results['references'])}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n'
        f"<style>\n{(HERE / 'report.css').read_text()}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n<footer>Made by <code>scripts/compare.sh</code>. Figures belong to the machine and the commit "
        "named above; ratios carry over better than absolute figures do.</footer>\n"
        f'<div id="tip" role="status"></div>\n<script>\n{(HERE / "report.js").read_text()}</script>\n</body>\n</html>\n'
    )


# Parts.


def style(results, server):
    """The colour of a server: 0 is ringd's."""
    return ([results["ours"], *results["references"]].index(server)) % 4


def ordered(results, found):
    """A scenario's servers, ringd first."""
    return [(server, found[server]) for server in (results["ours"], *results["references"]) if server in found]


def legend(results, servers):
    keys = "".join(f'<span><i class="s{style(results, server)}"></i>{escape(server)}</span>' for server in servers)
    return f'<div class="legend">{keys}</div>'


def figure(results, title, about, servers, chart):
    """A card with a chart; nothing when there is no chart."""
    if not chart:
        return ""
    small = f"<small>{escape(about)}</small>" if about else ""
    return f"<figure><figcaption>{escape(title)}{small}</figcaption>{legend(results, servers)}{chart}</figure>"


def section(title, about, cards):
    cards = [card for card in cards if card]
    if not cards:
        return ""
    return f'<h2>{escape(title)}</h2>\n<p class="soft">{about}</p>\n<div class="cards">' + "\n".join(cards) + "</div>"


def opening(results):
    lines_about = "".join(f"<li>{escape(line)}</li>" for line in tables.machine_lines(results))
    names = " and ".join(escape(name) for name in results["references"])
    warnings = []
    if results["settings"]["form"] == "quick":
        warnings.append("This is a smoke run: it shows that the comparison works, and its figures mean nothing.")
    if results.get("unfinished"):
        warnings.append("The comparison did not come to its end.")
    if results["settings"]["debug"]:
        warnings.append("ringd was a debug build.")
    if results["machine"]["load_at_start"] > 0.5:
        warnings.append(f"The machine was busy: load average {results['machine']['load_at_start']:.1f} at the start.")
    failed = sum(not check["holds"] for check in results["checks"])
    if failed:
        warnings.append(f"{failed} checks failed; they are listed at the end.")
    warned = f'<div class="warning">{" ".join(warnings)}</div>' if warnings else ""
    tiles = "".join(tile(*each) for each in tile_values(results))
    return (
        f'<header><div class="bar-top"><h1>ringd against {names}</h1>'
        '<button id="theme" type="button">Light or dark</button></div>'
        f'<ul class="about">{lines_about}</ul>{warned}'
        f'<div class="tiles">{tiles}</div></header>\n<main>'
    )


def tile(value, text):
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(text)}</span></div>'


def tile_values(results):
    measured, stored = summary.figures(results), summary.stored(results)
    for name, metric, text in TILES:
        found = measured.get(name, {}) if name else stored
        first = results["references"][0]
        ratio = summary.ratio(found.get(results["ours"], {}), found.get(first, {}), metric)
        if ratio is not None:
            yield summary.reached(ratio), f"{first}’s {text}"


def goals(results):
    judged = [goal for goal in summary.goals(results) if goal["against"]]
    alone = summary.write_alone(results)
    if not judged:
        return ""
    most = 10 ** max(0.7, 0.1 + max(place(goal) for goal in judged))
    head = "".join(f'<th class="text wide" colspan="2">{escape(name)}</th>' for name in results["references"])
    named = [
        goal["title"] if at == 0 or goal["title"] != judged[at - 1]["title"] else "" for at, goal in enumerate(judged)
    ]
    body = "".join(goal_row(results, goal, name, most) for goal, name in zip(judged, named, strict=True))
    if alone:
        verdict = said(alone["met"])
        body += (
            f'<tr><td class="text">Durable puts, one at a time</td><td class="text">p50 on top of the same write alone '
            f"({number(alone['alone_us'])} µs)</td><td>≤ {alone['asked_us']} µs</td>"
            f"<td>{number(alone['extra_us'])} µs {verdict}</td>"
            + "<td></td>" * (2 * len(results["references"]) - 1)
            + "</tr>"
        )
    missing = sum(not goal["against"] for goal in summary.goals(results))
    left = f" {missing} goals have no figure in this run." if missing else ""
    return (
        '<h2>Goals</h2>\n<p class="soft">ringd’s figure over the reference’s. Bars show on a log scale how many times '
        f"better ringd is, from 1 × to {number(most, 2)} ×; the upright line is the goal.{left}</p>\n"
        '<div class="sheet"><table><tr><th class="text">work</th><th class="text">figure</th><th>goal</th>'
        f"{head}</tr>{body}</table></div>"
    )


def place(goal):
    """How far right a goal's bars reach, as a power of ten."""
    values = [better(goal, each["ratio"]) for each in goal["against"].values()] + [wanted(goal)]
    return max(log10(max(value, 1)) for value in values)


def better(goal, ratio):
    return ratio if goal["at_least"] else 1 / max(ratio, 1e-6)


def wanted(goal):
    return goal["at_least"] or 1 / goal["at_most"]


def said(met):
    return '<span class="met-text">met</span>' if met else '<span class="missed-text">missed</span>'


def goal_row(results, goal, name, most):
    cells = f'<td class="text">{escape(name)}</td><td class="text">{escape(goal["metric"])}</td>'
    cells += f"<td>{escape(summary.asked(goal))}</td>"
    for server in results["references"]:
        against = goal["against"].get(server)
        if not against:
            cells += "<td>–</td><td></td>"
            continue
        reached = summary.reached(against["ratio"])
        tip = f"{goal['title']}, {goal['metric']}: {reached} that of {server}, {summary.asked(goal)} asked"
        bar = reach(better(goal, against["ratio"]), wanted(goal), most, tip)
        cells += f'<td>{reached} {said(against["met"])}</td><td class="wide">{bar}</td>'
    return f"<tr>{cells}</tr>"


def titles(results):
    return {each["name"]: each["title"] for each in results["scenarios"]}


def throughput(results):
    measured, names, memory = summary.figures(results), titles(results), []
    fixed = {each["name"] for each in results["scenarios"] if each.get("offered")}
    rates, cpu = [], []
    for name, found in measured.items():
        servers = ordered(results, found)
        key = tables.main_rate(servers[0][1])
        # Where arrivals are fixed, the throughput is what was asked for.
        if name not in fixed:
            bar_group = [(style(results, s), s, run.get(key), show(run.get(key), key)) for s, run in servers]
            rates.append((names[name], bar_group))
        cpu.append(
            (
                names[name],
                [
                    (style(results, s), s, run.get("server_cpu_us"), show(run.get("server_cpu_us"), "server_cpu_us"))
                    for s, run in servers
                ],
            )
        )
        # Runs with much of it have peaks that say something; the others' are the allocator's.
        peaks = [(style(results, s), s, run.get("extra_memory_bytes")) for s, run in servers]
        if max((peak or 0 for _, _, peak in peaks), default=0) > PEAK_BYTES_MIN:
            memory.append((names[name], [(*peak, show(peak[2], "extra_memory_bytes")) for peak in peaks]))
    everyone = [results["ours"], *results["references"]]
    return section(
        "Throughput and what it costs",
        "Medians of the rounds, closed loop unless said.",
        [
            figure(
                results,
                "Throughput",
                "longer is better; each kind of work on a scale of its own",
                everyone,
                bars("Throughput", rates, True),
            ),
            figure(
                results,
                "Server CPU for one call",
                "shorter is better; kernel threads of the server included",
                everyone,
                bars("Server CPU for one call", cpu, True),
            ),
            figure(
                results,
                "Memory on top",
                "shorter is better; the peak of a run over what was resident before it, where that is much",
                everyone,
                bars("Memory on top", memory, True),
            ),
        ],
    )


def microseconds(value):
    for by, unit in ((1e6, "s"), (1e3, "ms")):
        if value >= by:
            return f"{value / by:g} {unit}"
    return f"{value:g} µs"


def short(value):
    """A count on an axis."""
    for by, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= by:
            return f"{value / by:g}{unit}"
    return f"{value:g}"


def size(value):
    for by, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= by:
            return f"{value / by:.3g} {unit}"
    return f"{value:g} B"


def percentile(quantile):
    """0.999 as 99.9 %."""
    return f"{100 * quantile:.6g} %"


QUANTILES = Axis("share of the calls that were this quick or quicker", "quantile", percentile)
LATENCY = Axis("latency", "log", microseconds)


def distributions(results):
    measured, cards = summary.figures(results), []
    offered = {each["name"]: each.get("offered") for each in results["scenarios"]}
    for name, found in measured.items():
        drawn = []
        for server, run in ordered(results, found):
            points = summary.latency(run)
            marked = nearest(points, MARKED_QUANTILES)
            tips = {at: f"{percentile(points[at][0])} within {show(points[at][1], 'p50_us')}" for at in marked}
            drawn.append(Line(style(results, server), server, points, tips, dots=False))
        title = titles(results)[name]
        about = (
            f"{number(offered[name])} calls a second arrive, counted from when each was due" if offered[name] else ""
        )
        chart = lines(f"Latency: {title}", QUANTILES, LATENCY, drawn)
        cards.append(figure(results, title, about, [line.name for line in drawn], chart))
    return section(
        "Latency", "Lower is better. To the right the slowest calls: each step leaves a tenth of them.", cards
    )


def nearest(points, wanted_quantiles):
    """The index of the point at each of some quantiles, where there is one."""
    found = set()
    for quantile in wanted_quantiles:
        close = [(abs(point[0] - quantile), at) for at, point in enumerate(points)]
        if close and min(close)[0] <= 0.2 * (1 - quantile) + 1e-9:
            found.add(min(close)[1])
    return found


def point_text(point):
    carried = f"{show(point['offered'], 'rate')} arrive, {show(point['rate'], 'rate')} carried"
    return f"{carried}, p99 {show(point['p99_us'], 'p99_us')}"


def curves(results):
    cards = []
    for curve in results["curves"]:
        drawn = []
        for server, points in ordered(results, curve["points"]):
            tips = {at: point_text(each) for at, each in enumerate(points)}
            drawn.append(
                Line(style(results, server), server, [(each["rate"], each["p99_us"]) for each in points], tips)
            )
        x_axis, y_axis = Axis("calls per second carried", "log", short), Axis("p99", "log", microseconds)
        chart = lines(curve["title"], x_axis, y_axis, drawn)
        cards.append(
            figure(
                results, curve["title"], "throughput against p99", [line.name for line in drawn if line.points], chart
            )
        )
    return section(
        "Throughput against p99",
        "Open loop: calls arrive on a schedule, at growing shares of what each server does at most, and latency counts "
        "from when a call was due. To the right and low is better.",
        cards,
    )


SERIES = (
    ("calls", "Calls per second", Axis("calls per second", "linear", short), "rate"),
    ("p99_us", "p99 of each second", Axis("p99", "log", microseconds), "p99_us"),
    ("server_cpu", "Server CPU", Axis("seconds used in each second", "linear", lambda value: f"{value:.3g}"), None),
    ("rss_bytes", "Resident memory", Axis("MiB", "linear", short), None),
    ("file_bytes", "Data directory", Axis("MiB", "linear", short), None),
)


def time_series(results):
    """Of the run that took longest."""
    measured = summary.figures(results)
    longest = max(measured, key=lambda name: max(len(run["series"]) for run in measured[name].values()), default=None)
    if longest is None or max(len(run["series"]) for run in measured[longest].values()) < 3:
        return ""
    time_axis, cards = Axis("seconds", "linear", short), []
    for key, title, axis, metric in SERIES:
        drawn = []
        for server, run in ordered(results, measured[longest]):
            factor = 2**-20 if key.endswith("_bytes") else 1
            points = [(each["t"], each[key] * factor) for each in run["series"] if each.get(key) is not None]
            tips = {at: f"second {x:g}: {show(y, metric) if metric else number(y)}" for at, (x, y) in enumerate(points)}
            drawn.append(Line(style(results, server), server, points, tips))
        cards.append(figure(results, title, "", [line.name for line in drawn], lines(title, time_axis, axis, drawn)))
    return section("Over time", f"{escape(titles(results)[longest])}.", cards)


def store(results):
    cards = []
    keys = max((each["keys"] for each in results["loaded"].values()), default=0)
    wanted_bars = (
        ("rss_bytes", "Resident memory", "shorter is better"),
        ("file_bytes", "Data directory", "what it takes on the disk, log segments allocated ahead included"),
        ("fill_rate", "Loading", "keys put per second, longer is better"),
        ("restart_seconds", "Restart", "from the start of the process to its first linearizable read"),
    )
    for metric, title, about in wanted_bars:
        groups = []
        for part, name in (("loaded", f"{number(keys)} keys"), ("versions", f"{scenarios.VERSIONS} versions of each")):
            rows = ordered(results, summary.stored(results, part)) if results.get(part) else []
            for key, said_of in ((metric, name), ("restart_after_kill_seconds", "after kill -9")):
                if key == metric or (metric == "restart_seconds" and part == "loaded"):
                    each = [(style(results, s), s, row.get(key), show(row.get(key), key)) for s, row in rows]
                    groups.append((said_of, each))
        everyone = [results["ours"], *results["references"]]
        cards.append(figure(results, title, about, everyone, bars(title, groups)))
    return section("The store with the keys loaded", "After the load has come to rest.", cards)


def failovers(results):
    rows = ordered(results, summary.failovers(results))
    if not rows:
        return ""
    title, servers = "Without writes after the leader's kill -9", [server for server, _ in rows]
    groups = [
        (name, [(style(results, s), s, row[key], show(row[key], key)) for s, row in rows])
        for name, key in (("median", "failover_seconds"), ("longest", "failover_longest_seconds"))
    ]
    drawn = [failover_line(results, server, results["failovers"][server]) for server in servers]
    x_axis = Axis("share of the kills with a gap this short or shorter", "linear", lambda share: f"{100 * share:.3g} %")
    y_axis = Axis("seconds without writes", "linear", lambda value: f"{value:.3g}")
    every = "Gaps after the leader's kill -9"
    return section(
        "Failover",
        "Three members of each. Steady puts at the two that are left: from the kill to the first acknowledgement of one "
        "that began after it.",
        [
            figure(results, title, "shorter is better", servers, bars(title, groups)),
            figure(results, every, "a dot to a kill; lower is better", servers, lines(every, x_axis, y_axis, drawn)),
        ],
    )


def failover_line(results, server, times):
    points = [((at + 1) / len(times), gap) for at, gap in enumerate(sorted(times))]
    tips = {at: show(gap, "failover_seconds") for at, (_, gap) in enumerate(points)}
    return Line(style(results, server), server, points, tips)


def sweeps(results):
    cards = []
    for sweep in results["sweeps"]:
        every = [about for row in sweep["rows"] for about in row["servers"].values()]
        kinds = dict.fromkeys(name for about in every for name in about.get("runs", {}))
        axis = Axis("size", "bytes", size) if sweep["unit"] == "bytes" else Axis(sweep["unit"], "log", short)
        for kind in kinds:
            for metric, title in (("rate", "throughput"), ("p99_us", "p99"), ("server_cpu_us", "server CPU per call")):
                drawn = sweep_lines(results, sweep, pick_of(kind, metric), metric)
                y_axis = Axis(METRICS[metric][0], "log", short if metric == "rate" else microseconds)
                chart = lines(f"{sweep['title']}: {kind}: {title}", axis, y_axis, drawn)
                cards.append(figure(results, f"{sweep['title']}: {kind}", title, [line.name for line in drawn], chart))
        if sweep["name"] in ("keys", "history"):
            drawn = sweep_lines(results, sweep, lambda about: about.get("rss_bytes"), "rss_bytes")
            chart = lines(f"{sweep['title']}: memory", axis, Axis("resident", "bytes", size), drawn)
            cards.append(figure(results, sweep["title"], "resident memory", [line.name for line in drawn], chart))
    return section("How the cost grows", "One dimension at a time.", cards)


def pick_of(kind, metric):
    """Of what a sweep has of a server, one figure of one kind of work."""

    def pick(about):
        runs = about.get("runs", {}).get(kind)
        return summary.median(runs).get(metric) if runs else None

    return pick


def sweep_lines(results, sweep, pick, metric):
    drawn = []
    for server in (results["ours"], *results["references"]):
        found = [(row["value"], pick(row["servers"][server])) for row in sweep["rows"] if server in row["servers"]]
        points = [(x, y) for x, y in found if y is not None]
        tips = {at: f"{number(x)} {sweep['unit']}: {show(y, metric)}" for at, (x, y) in enumerate(points)}
        drawn.append(Line(style(results, server), server, points, tips))
    return [line for line in drawn if line.points]


def sheet(results, headings, found, texts=2):
    head = "".join(f"<th{' class=text' if at < texts else ''}>{escape(text)}</th>" for at, text in enumerate(headings))
    body, before = "", None
    everyone = [results["ours"], *results["references"]]
    for row in found:
        cells = ""
        for at, text in enumerate(row):
            key = f'<i class="key s{style(results, text)}"></i>' if text in everyone else ""
            shown = "" if at == 0 and text == before and text not in everyone else escape(text)
            cells += f"<td{' class=text' if at < texts else ''}>{key}{shown}</td>"
        before = row[0]
        body += f"<tr>{cells}</tr>"
    return f'<div class="sheet"><table><tr>{head}</tr>{body}</table></div>'


def all_figures(results):
    parts = []
    if tables.rows(results):
        parts.append(sheet(results, ["work", "server", *tables.HEADINGS], tables.rows(results)))
    if tables.more_rows(results):
        parts.append(sheet(results, tables.MORE_HEADINGS, tables.more_rows(results), 3))
    for part in ("loaded", "versions"):
        if results.get(part):
            parts.append(sheet(results, ["server", *tables.STORED_HEADINGS], tables.stored_rows(results, part), 1))
    missing = tables.missing(results)
    if missing:
        listed = "".join(f"<li>{escape(line)}</li>" for line in missing)
        parts.append(f"<details><summary>What was not measured</summary><ul>{listed}</ul></details>")
    return '<h2>All figures</h2>\n<p class="soft">Medians of the rounds.</p>\n' + "\n".join(parts) if parts else ""


def checks(results):
    held = [check["check"] for check in results["checks"] if check["holds"]]
    failed = [check["check"] for check in results["checks"] if not check["holds"]]
    listed = "".join(f'<li class="missed-text">{escape(text)}</li>' for text in failed)
    good = "".join(f"<li>{escape(text)}</li>" for text in held)
    commands = escape("\n".join(tables.commands(results)))
    return (
        '<h2>That the work was done</h2>\n<p class="soft">On every server: after each run the revision has risen by '
        "exactly the writes that were acknowledged, as a call of its own tells, and no call failed; the keys that were "
        "loaded are all there, also after kill -9; and the same puts one at a time make the same HashKV. Every "
        "acknowledged write is synced, on all servers.</p>\n"
        f"<p>{len(held)} of {len(results['checks'])} checks hold.</p><ul>{listed}</ul>"
        f"<details><summary>What was checked</summary><ul>{good}</ul></details>"
        '<h2>Commands</h2>\n<p class="soft">Servers are pinned to core 0, the load to core 1.</p>'
        f"<pre>{commands}</pre>"
    )
