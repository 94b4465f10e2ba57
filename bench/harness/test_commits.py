"""Tests of the comparison of commits: what is read of criterion's files, and what rounds say."""

import json
import pathlib
import tempfile
import unittest

from . import commits


class Commits(unittest.TestCase):
    def test_a_bench_counts_when_every_round_says_so(self):
        before = [{"steady": 100, "slow": 100, "fast": 100, "torn": 100, "gone": 1}] * 3
        after = [
            {"steady": 103, "slow": 120, "fast": 80, "torn": 90},
            {"steady": 104, "slow": 110, "fast": 90, "torn": 130},
            {"steady": 104, "slow": 107, "fast": 85, "torn": 140},
        ]
        rows = {row["name"]: row for row in commits.compare(before, after, noise=5)}
        said = {name: row["verdict"] for name, row in rows.items()}
        self.assertEqual(said, {"steady": "", "slow": "slower", "fast": "faster", "torn": ""})
        self.assertEqual(rows["slow"]["ratio"], 1.1)
        self.assertIn("slow", commits.table(rows.values()))

    def test_what_criterion_stored_is_read(self):
        with tempfile.TemporaryDirectory() as path:
            folder = pathlib.Path(path) / "index/get/new"
            folder.mkdir(parents=True)
            (folder / "benchmark.json").write_text(json.dumps({"full_id": "index/get"}))
            (folder / "estimates.json").write_text(json.dumps({"median": {"point_estimate": 12.5}}))
            self.assertEqual(commits.read(path), {"index/get": 12.5})

    def test_a_name_that_is_no_bench_is_told(self):
        with tempfile.TemporaryDirectory() as path, self.assertRaises(commits.Failure):
            commits.read(path)

    def test_a_commit_that_is_none_is_told(self):
        with self.assertRaises(commits.Failure):
            commits.Worktree("a", "no-such-commit")

    def test_times_read_well(self):
        self.assertEqual([commits.spoken(ns) for ns in (1.5, 1500, 2.5e6, 3e9)], ["1.5 ns", "1.5 µs", "2.5 ms", "3 s"])


if __name__ == "__main__":
    unittest.main()
