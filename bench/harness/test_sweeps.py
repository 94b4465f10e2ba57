"""Tests of what bounds a comparison: which values of a sweep are measured, and how a run is fitted to its minutes."""

import time
import types
import unittest
from unittest import mock

from . import compare, runs, scenarios, sweeps


def planned(servers, minutes_used=0.0, form="default"):
    """A comparison of so many servers, planned but not run."""
    seconds, rounds, quiet, minutes = compare.FORMS[form]
    began = time.monotonic() - 60 * minutes_used
    settings = runs.Settings(form, seconds, rounds, None, quiet, minutes=minutes, began=began)
    comparison = runs.Comparison.__new__(runs.Comparison)
    comparison.settings, comparison.programs = settings, dict.fromkeys(map(str, range(servers)))
    comparison.progress, comparison.results = runs.Progress(), {"settings": {}, "loaded": {}, "scenarios": []}
    comparison.deadline = began + 60 * minutes if minutes else float("inf")
    return comparison


class Minutes(unittest.TestCase):
    def test_the_default_form_fits_into_twenty_minutes_with_builds_of_eight(self):
        for servers in (2, 3):
            for used in (0, 1, 4, 8):
                comparison = planned(servers, used)
                comparison.fit(scenarios.STAGES)
                self.assertLess(used + comparison.progress.planned / 60, 19, (servers, used))
                self.assertGreaterEqual(comparison.settings.seconds, runs.SECONDS_MIN)

    def test_the_last_stages_are_left_out_when_nothing_else_helps(self):
        comparison = planned(3, 18)
        stages = comparison.fit(scenarios.STAGES)
        self.assertEqual(stages, [scenarios.POINTS])
        left_out = {each["stage"] for each in comparison.results["scenarios"]}
        self.assertEqual(left_out, {stage.name for stage in scenarios.STAGES[1:]})

    def test_what_fits_is_left_as_it_is(self):
        comparison = planned(2)
        comparison.fit(scenarios.STAGES)
        self.assertEqual((comparison.settings.seconds, comparison.settings.rounds), compare.FORMS["default"][:2])

    def test_the_full_form_is_not_made_shorter(self):
        comparison = planned(3, form="full")
        comparison.fit(scenarios.STAGES)
        self.assertEqual((comparison.settings.seconds, comparison.settings.rounds), compare.FORMS["full"][:2])
        compacted = next(e for stage in scenarios.STAGES for e in stage.scenarios if e.full_seconds)
        self.assertEqual(comparison.extent(compacted), (1, compacted.full_seconds))


class Sweeps(unittest.TestCase):
    def choose(self, extent, memory, cores=2):
        comparison = planned(3)
        comparison.results.update(ours="2", references=["0", "1"])
        comparison.work = None
        usual = {"keys": 1000, "value_bytes": 256, "versions": 1, "cores": 1}
        with (
            mock.patch.object(sweeps, "memory_bytes", lambda: (memory, memory)),
            mock.patch.object(sweeps, "disk", lambda _: {"free_bytes": 1 << 60}),
            mock.patch.object(sweeps.os, "cpu_count", lambda: cores),
        ):
            return sweeps.choose(comparison, {**usual, **extent})

    def test_what_does_not_fit_is_compared_with_one_reference_or_left_out(self):
        self.assertEqual(self.choose({}, 1 << 30), (["0", "1", "2"], None))
        self.assertEqual(self.choose({"keys": 10_000_000}, 24 << 30), (["0", "2"], None))
        self.assertIn("memory needed", self.choose({"keys": 10_000_000}, 8 << 30)[1])
        self.assertIn("cores needed", self.choose({"cores": 4}, 1 << 30)[1])

    def test_time_is_told_by_the_slowest_server(self):
        comparison = planned(3)
        comparison.results["loaded"] = {"a": {"fill_rate": 10_000}, "b": {"fill_rate": 100_000}}
        sweep = types.SimpleNamespace(scenarios=(1, 2))
        extent = {"keys": 1_000_000, "versions": 2}
        seconds = sweeps.seconds_of(comparison, sweep, extent, [], 3)
        self.assertTrue(600 < seconds < 700, seconds)

    def test_a_smoke_run_takes_two_values_of_few_keys(self):
        settings = types.SimpleNamespace(form="quick", keys=None)
        for sweep in scenarios.SWEEPS:
            self.assertEqual(sweeps.values_of(sweep, settings), sweep.values[:2])
        self.assertEqual(sweeps.extent_of(scenarios.SWEEPS[0], 10_000_000, settings)["keys"], 1000)

    def test_watchers_become_flags_and_large_values_few_calls(self):
        extent = sweeps.extent_of(scenarios.SWEEPS[3], 100_000, types.SimpleNamespace(form="full", keys=None))
        words = ["--connections", 100, "--streams", 1000, "--depth", 1]
        self.assertEqual(sweeps.flags_of(extent)[0], words)
        extent = sweeps.extent_of(scenarios.SWEEPS[1], 1 << 20, types.SimpleNamespace(form="full", keys=None))
        self.assertEqual(extent["keys"], 512)
        large = {"value_bytes": 1 << 20, "keys": 2000}
        self.assertEqual(sweeps.flags_of(large), (list(scenarios.FEW), scenarios.FEW))


if __name__ == "__main__":
    unittest.main()
