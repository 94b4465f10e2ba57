"""Tests of the cross-check: what is read of etcd's tool, and what a row is said to show."""

import unittest

from . import crosscheck, others

SUMMARY = """
Watch creation summary:

Summary:
  Total:\t1.5 secs.
  Requests/sec:\t7

Watch events received summary:

Summary:
  Total:\t2.0041 secs.
  Slowest:\t0.0172 secs.
  Fastest:\t1e-06 secs.
  Average:\t0.00083 secs.
  Stddev:\t0.0011 secs.
  Requests/sec:\t1203.25

Response time histogram:
  1e-06 [1]\t|
  0.0172 [7]\t|∎∎

Latency distribution:
  10% in 0.000214 secs.
  50% in 0.000345 secs.
  99% in 0.0061 secs.
  99.9% in 0.0171 secs.
"""


class Parsing(unittest.TestCase):
    def test_the_last_summary_is_read(self):
        found = others.parse(SUMMARY)
        self.assertEqual((found["rate"], found["seconds"]), (1203.25, 2.0041))
        self.assertAlmostEqual(found["p50_us"], 345)
        self.assertAlmostEqual(found["p99_us"], 6100)
        self.assertAlmostEqual(found["mean_us"], 830)

    def test_failed_calls_are_no_figures(self):
        self.assertIsNone(others.parse(SUMMARY + "\nError distribution:\n  [3]\tcontext deadline exceeded\n"))
        self.assertIsNone(others.parse("dial error"))


class Verdicts(unittest.TestCase):
    def test_a_call_alone_may_take_the_generators_own_time_longer(self):
        ours, theirs = {"rate": 4000, "cpu_us": 10}, {"rate": 3000, "cpu_us": 90}
        ratio, said = crosscheck.judge("alone", ours, theirs, 20)
        self.assertEqual((round(ratio, 3), said), (1.014, "agree"))
        self.assertEqual(crosscheck.judge("alone", ours, {**theirs, "cpu_us": 9}, 20)[1], "DIFFERS")

    def test_fewer_calls_say_something_unless_the_generator_is_the_limit(self):
        ours = {"rate": 100_000}
        self.assertEqual(crosscheck.judge("many", ours, {"rate": 90_000, "busy": 0.5}, 20)[1], "agree")
        self.assertEqual(crosscheck.judge("many", ours, {"rate": 20_000, "busy": 0.5}, 20)[1], "DIFFERS")
        self.assertEqual(crosscheck.judge("many", ours, {"rate": 20_000, "busy": 0.95}, 20)[1], "its core is the limit")
        self.assertEqual(crosscheck.judge("many", ours, {"rate": 200_000, "busy": 0.95}, 20)[1], "DIFFERS")

    def test_a_rate_is_kept_at_the_same_cost(self):
        ours = {"rate": 2000, "server_cpu_us": 50}
        self.assertEqual(crosscheck.judge("rate", ours, {"rate": 1990, "server_cpu_us": 55}, 20)[1], "agree")
        self.assertEqual(crosscheck.judge("rate", ours, {"rate": 1990, "server_cpu_us": 70}, 20)[1], "DIFFERS")
        slow = {"rate": 1000, "server_cpu_us": 50, "busy": 0.2}
        self.assertTrue(crosscheck.judge("rate", ours, slow, 20)[1].startswith("DIFFERS"))

    def test_the_table_has_a_line_for_each(self):
        row = crosscheck.ROWS[0]
        seen = {"ringd-bench": {"rate": 4000.0, "cpu_us": 10.0, "busy": 0.1}, "h2load": {"rate": 4000.0}}
        text, differs = crosscheck.table([(crosscheck.ROWS[4], "etcd", seen)], 20)
        self.assertIn("agree", text)
        self.assertFalse(differs)
        self.assertEqual(row.kind, "alone")


if __name__ == "__main__":
    unittest.main()
