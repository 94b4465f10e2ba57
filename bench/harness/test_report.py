"""Tests of the report and the tables, from stored results: figures, goals, pictures, and how a browser takes the page.

The browser is Chromium or Chrome, headless. Where there is none the page is parsed only, and the test says so.
"""

import copy
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from . import charts, grpc, report, runs, scenarios, summary, tables
from .scenarios import Goal

STORED = pathlib.Path(__file__).resolve().parent / "testdata/results.json"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_SECONDS = 120
# Run in the browser after the page: what of it is drawn.
PROBE = """<script>
addEventListener("load", () => {
  const size = (mark) => { const box = mark.getBBox(); return box.width + box.height; };
  const inks = (chart) => {
    const card = getComputedStyle(chart.closest("figure")).backgroundColor;
    const ink = (mark) => getComputedStyle(mark)[mark.tagName === "polyline" ? "stroke" : "fill"];
    const shown = (mark) => size(mark) > 0 && ![card, "none", "rgba(0, 0, 0, 0)"].includes(ink(mark));
    const marks = [...chart.querySelectorAll("polyline, rect.bar, circle.dot")];
    return { marks: marks.length, shown: marks.filter(shown).length, inks: new Set(marks.map(ink)).size };
  };
  const look = () => [...document.querySelectorAll("svg.chart")].map((chart) => ({
    name: chart.getAttribute("aria-label"),
    width: chart.getBoundingClientRect().width,
    height: chart.getBoundingClientRect().height,
    servers: chart.closest("figure").querySelectorAll(".legend span").length,
    ...inks(chart),
  }));
  let charts = look();
  document.getElementById("theme").click();
  charts = [...charts, ...look()];
  const found = document.createElement("pre");
  found.id = "probe";
  found.textContent = JSON.stringify({
    charts, theme: document.documentElement.dataset.theme || null,
    tooWide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  });
  document.body.append(found);
});
</script>"""


def stored():
    return json.loads(STORED.read_text())


def browse(page, width=1280):
    """Opens a page; the document it became and what was said on the console. None without a browser."""
    program = next((found for found in map(shutil.which, BROWSERS) if found), None)
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "page.html"
        path.write_text(page)
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += [f"--user-data-dir={folder}/profile", f"--window-size={width},1000"]
        command += ["--enable-logging=stderr", "--dump-dom", path.as_uri()]
        run = subprocess.run(command, capture_output=True, text=True, timeout=BROWSER_SECONDS)
    console = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    return run.stdout, console


class Marks(html.parser.HTMLParser):
    """The charts of a page, each with its marks, and what the page would fetch."""

    def __init__(self, page):
        super().__init__()
        self.charts, self.fetched, self.open = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.fetched += [attributes[key] for key in ("src", "href") if key in attributes]
        if tag == "svg" and attributes.get("class") == "chart":
            self.charts.append((attributes["aria-label"], []))
        elif tag in ("polyline", "rect", "circle") and self.charts:
            self.charts[-1][1].append((tag, attributes))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"


class Report(unittest.TestCase):
    def test_every_chart_has_marks_of_some_size_and_nothing_is_fetched(self):
        page = Marks(report.page(stored()))
        self.assertEqual(page.open, [])
        self.assertEqual(page.fetched, ["data:,"])
        self.assertGreater(len(page.charts), 30)
        for name, marks in page.charts:
            self.assertTrue(any(large(tag, attributes) for tag, attributes in marks), name)
            for _, attributes in marks:
                drawn = " ".join(value for key, value in attributes.items() if key not in ("data-tip", "class"))
                self.assertNotRegex(drawn, "nan|inf|None", name)

    def test_the_kinds_of_pictures_are_all_there(self):
        names = [name for name, _ in Marks(report.page(stored())).charts]
        wanted = ["Latency: Durable puts, 512 in flight", "Throughput", "Server CPU for one call", "Calls per second"]
        wanted += ["p99 of each second", "Durable puts arriving on a schedule", "Resident memory", "Data directory"]
        wanted += ["Server CPU", "Memory on top", "Restart"]
        wanted += ["Without writes after the leader's kill -9", "Gaps after the leader's kill -9"]
        wanted += [f"{each.title}: {each.scenarios[0].name}: throughput" for each in scenarios.SWEEPS]
        for name in wanted:
            self.assertIn(name, names)
        # Memory and files both at rest and second by second.
        self.assertEqual([names.count(name) for name in ("Resident memory", "Data directory")], [2, 2])

    def test_a_browser_takes_it_without_a_complaint_and_draws_it(self):
        page = report.page(stored()).replace("</body>", PROBE + "</body>")
        for width in (1280, 500):
            seen = browse(page, width)
            if seen is None:
                self.skipTest("no Chromium or Chrome here: the page was parsed (above), not opened")
            document, console = seen
            self.assertEqual(console, [])
            found = json.loads(html.unescape(re.search('<pre id="probe">(.*?)</pre>', document).group(1)))
            # In the light and in the dark.
            self.assertEqual(len(found["charts"]), 2 * len(Marks(page).charts))
            for chart in found["charts"]:
                self.assertGreater(chart["marks"], 0, chart)
                self.assertEqual(chart["shown"], chart["marks"], chart)
                self.assertEqual(chart["inks"], chart["servers"], chart)
                self.assertGreater(chart["width"], 200, chart)
                self.assertGreater(chart["height"], 20, chart)
            self.assertIn(found["theme"], ("dark", "light"))
            self.assertFalse(found["tooWide"], f"at {width} the page scrolls sideways")

    def test_a_page_with_a_mistake_is_told(self):
        seen = browse("<!doctype html><body><script>document.nothing.more</script></body>")
        if seen is None:
            self.skipTest("no Chromium or Chrome here")
        self.assertEqual(len(seen[1]), 1)

    def test_what_people_name_is_escaped(self):
        results = stored()
        results["machine"]["cpu"] = "<script>alert(1)</script>"
        self.assertNotIn("<script>alert", report.page(results))

    def test_results_with_holes_make_a_page(self):
        results = stored()
        for key in ("scenarios", "curves", "sweeps", "checks"):
            results[key] = []
        results.update(loaded={}, restarts={})
        results.pop("versions")
        results["failovers"] = {server: [] for server in results["failovers"]}
        self.assertIn("<h1>", report.page(results))
        self.assertNotIn("Failover", report.page(results))
        self.assertEqual(tables.failover_rows(results), [])
        self.assertIn("## Goals", tables.markdown(results))
        self.assertTrue(tables.terminal(results))

    def test_figures_of_an_older_load_generator_make_a_page(self):
        results = stored()
        for scenario in results["scenarios"]:
            for each in scenario["runs"].values():
                for run in each:
                    for key in ("latency", "series", "p999_us", "puts_rate", "bytes", "server_cpu_us"):
                        run.pop(key, None)
        names = [name for name, _ in Marks(report.page(results)).charts]
        self.assertIn("Latency: Durable puts, 512 in flight", names)
        self.assertNotIn("Calls per second", names)

    def test_it_says_when_the_figures_are_worth_nothing(self):
        results = stored()
        self.assertNotIn('class="warning"', report.page(results))
        results["settings"]["form"] = "quick"
        self.assertIn("smoke run", report.page(results))
        results["checks"].append({"check": "something", "holds": False})
        self.assertIn("1 checks failed", report.page(results))


def large(tag, attributes):
    """Whether a mark covers some of the picture."""
    if tag == "rect":
        return float(attributes["width"]) > 0 and float(attributes["height"]) > 0
    if tag == "circle":
        return float(attributes["r"]) > 0
    return len(set(attributes["points"].split())) > 1


class Figures(unittest.TestCase):
    def test_goals_go_by_the_ratio_in_their_direction(self):
        results = {"ours": "ringd", "references": ["etcd"]}
        for goal, ours, met in (
            (Goal("rate", at_least=12), 120, True),
            (Goal("rate", at_least=12), 119, False),
            (Goal("p99_us", at_most=1 / 4), 2.5, True),
            (Goal("p99_us", at_most=1 / 4), 2.6, False),
        ):
            found = {"ringd": {goal.metric: ours}, "etcd": {goal.metric: 10}}
            verdict = summary.verdict("name", "title", goal, found, results)
            self.assertEqual(verdict["against"]["etcd"]["met"], met, (goal, ours))
        self.assertEqual(summary.verdict("name", "title", goal, {}, results)["against"], {})

    def test_rounds_become_medians(self):
        runs_of = [{"rate": rate, "calls": 100, "latency": [[0.5, rate], [0.9, 9]]} for rate in (1, 30, 2)]
        found = summary.median(runs_of)
        self.assertEqual(found["rate"], 2)
        self.assertEqual(found["latency"], [[0.5, 2], [0.9, 9]])

    def test_what_goes_on_beside_has_figures_of_its_own(self):
        run = {"seconds": 2.0, "rate": 30, "drained_seconds": 1.5, "beside": {"lists": {"byte_rate": 5, "p99_us": 7}}}
        found = summary.derive(run)
        self.assertEqual((found["lists_byte_rate"], found["lists_p99_us"], found["drained_us"]), (5, 7, 1.5e6))
        text = tables.markdown(stored())
        self.assertIn("bytes per second of the lists beside", text)
        self.assertIn("until the last lease had expired", text)

    def test_events_and_bytes_become_rates(self):
        self.assertEqual(summary.derive({"seconds": 2.0, "rate": 30, "puts_rate": 3})["event_rate"], 30)
        self.assertEqual(summary.derive({"seconds": 2.0, "bytes": 40})["byte_rate"], 20)

    def test_of_kills_the_median_and_the_longest_are_judged(self):
        results = stored()

        def against():
            goals = [goal for goal in summary.goals(results) if goal["name"] == "failover"]
            return {goal["metric"]: goal["against"].get("etcd 3.5.1") for goal in goals}

        told = against()
        self.assertEqual(set(told), {"median of the kills", "longest of the kills"})
        self.assertAlmostEqual(told["median of the kills"]["ratio"], 1.025 / 1.3)
        self.assertAlmostEqual(told["longest of the kills"]["ratio"], 1.25 / 1.8)
        self.assertTrue(all(each["met"] for each in told.values()))
        # One long gap is enough.
        results["failovers"]["ringd"][0] = 1.81
        self.assertTrue(against()["median of the kills"]["met"])
        self.assertFalse(against()["longest of the kills"]["met"])
        results["failovers"] = {server: [] for server in results["failovers"]}
        self.assertEqual(list(against().values()), [None, None])

    def test_kills_are_told_with_their_spread_and_drawn_one_by_one(self):
        results = stored()
        self.assertIn(["ringd", "4", "0.99 s", "1.02 s", "1.25 s"], tables.failover_rows(results))
        for text in (tables.markdown(results), tables.terminal(results)):
            self.assertIn("1.25 s", text)
        charts_of = dict(Marks(report.page(results)).charts)
        marks = charts_of["Gaps after the leader's kill -9"]
        self.assertEqual(sum(tag == "circle" for tag, _ in marks), 12)
        tips = [attributes.get("data-tip") for tag, attributes in marks if tag == "circle"]
        self.assertIn("ringd: 1.25 s", tips)

    def test_ratios_read_as_multiples_or_parts(self):
        self.assertEqual(
            [summary.reached(value) for value in (12.34, 1, 0.25, 1234)], ["12.3 ×", "1 ×", "1/4", "1 234 ×"]
        )

    def test_tables_name_the_machine_the_goals_and_what_is_missing(self):
        text = tables.markdown(stored())
        for wanted in (
            "A machine that was made up",
            "| Durable puts, 512 in flight |",
            "≥ 12 ×",
            "not in this ringd-bench",
        ):
            self.assertIn(wanted, text)
        self.assertNotIn(str(runs.ROOT), text)

    def test_a_failed_check_is_in_the_tables(self):
        results = copy.deepcopy(stored())
        results["checks"].append({"check": "keys are there", "holds": False})
        self.assertIn("FAILED: keys are there", tables.markdown(results))

    def test_the_kinds_of_work_that_were_asked_for_are_there(self):
        """Those of etcd's benchmark and of Kubernetes; each in closed loop, and what has to carry a load in open loop."""
        every = [each for stage in scenarios.STAGES for each in stage.scenarios]
        wanted = "put get mixed txn-put txn-mixed stm range watch watch-latency watch-get lease-grant lease-keepalive"
        wanted += " lease-churn lease-flood heartbeats churn list-storm apiserver-restart"
        self.assertEqual(set(wanted.split()) - {each.command for each in every}, set())
        flags = {flag for each in every for flag in each.flags}
        wanted = {"--limit", "--prefix-digits", "--paginate", "--stream", "--consistency", "--compact-interval"}
        self.assertEqual(wanted - flags, set())
        self.assertEqual({each.command for each in every if each.share_of}, {"put", "heartbeats", "list-storm"})
        curves = {each.command for stage in scenarios.STAGES for each in stage.curves}
        self.assertEqual(curves, {"put", "get", "heartbeats"})
        self.assertEqual(len(scenarios.SWEEPS), len({each.name for each in scenarios.SWEEPS}), 6)

    def test_names_are_given_once(self):
        names = [each.name for stage in scenarios.STAGES for each in stage.scenarios]
        self.assertEqual(len(names), len(set(names)))
        metrics = {goal.metric for stage in scenarios.STAGES for each in stage.scenarios for goal in each.goals}
        self.assertLessEqual(metrics, set(scenarios.METRICS))


class Checks(unittest.TestCase):
    def test_a_run_counts_only_with_its_work_done(self):
        run = {"calls": 10, "failed": 0, "revision_rose": 12, "seconds": 1.0}
        self.assertTrue(runs.verify(run, 12)[0])
        self.assertFalse(runs.verify(run, 11)[0])
        self.assertFalse(runs.verify({**run, "failed": 1}, 12)[0])
        self.assertFalse(runs.verify({**run, "calls": 0}, 12)[0])

    def test_a_load_of_watches_has_to_have_put(self):
        run = {"calls": 10, "failed": 0, "puts_rate": 5.0, "seconds": 2.0}
        self.assertTrue(runs.verify(run, 10)[0])
        self.assertFalse(runs.verify(run, 9)[0])
        self.assertFalse(runs.verify({**run, "puts_rate": 0}, 0)[0])


class Axes(unittest.TestCase):
    def test_ticks_lie_within_the_axis(self):
        for kind, values in (
            ("linear", (0, 7)),
            ("log", (3, 4e5)),
            ("bytes", (64, 1 << 20)),
            ("quantile", (0, 0.9999)),
        ):
            axis = charts.Axis("", kind, str)
            low, high = charts.bounds(axis, values)
            ticks = axis.ticks(low, high)
            self.assertGreater(len(ticks), 2, kind)
            for tick in ticks:
                self.assertTrue(low - 1e-6 <= axis.position(tick) <= high + 1e-6, (kind, tick))

    def test_values_without_a_place_are_left_out(self):
        axis = charts.Axis("", "log", str)
        line = charts.Line(0, "ringd", [(1, 1), (2, 0), (3, None), (10, 5)], {3: "last"})
        kept = charts.clean(line, axis, axis)
        self.assertEqual((kept.points, kept.tips), ([(1, 1), (10, 5)], {1: "last"}))


class Calls(unittest.TestCase):
    def test_messages_come_back_as_they_were(self):
        packed = grpc.message(f1=b"key", f3=300, f9=True, f4=0, f5=b"")
        self.assertEqual(grpc.fields(packed), {1: b"key", 3: 300, 9: 1})

    def test_nobody_there_is_a_failed_call(self):
        with self.assertRaises(grpc.CallFailed):
            grpc.status("127.0.0.1:1")


if __name__ == "__main__":
    unittest.main()
