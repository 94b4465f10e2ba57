"""Tests of clusters and of what their leader's end is measured by: against members of our own making, whose writes stop
and go on when the test says so."""

import contextlib
import pathlib
import socket
import stat
import tempfile
import threading
import time
import unittest
from unittest import mock

from . import cluster, grpc, steady
from .cluster import Cluster, Failover
from .machine import Failure


class Member:
    """Answers puts over HTTP/2 as long as it `takes` any; what it does not take is never answered."""

    def __init__(self):
        self.takes, self.keys, self.cancelled = True, [], 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        # The client may be gone at any time.
        with contextlib.suppress(OSError):
            self.answer(connection)

    def answer(self, connection):
        connection.sendall(grpc.frame(grpc.SETTINGS, 0, 0, b"") + grpc.frame(grpc.PING, 0, 0, b"01234567"))
        with connection.makefile("rb") as frames:
            frames.read(len(grpc.PREFACE))
            while found := grpc.read_frame(frames):
                kind, _, stream, payload = found
                self.cancelled += kind == grpc.RESET
                if kind == grpc.DATA and self.takes:
                    self.keys.append(grpc.fields(payload[5:])[1])
                    # The answer's header, as etcd's put has one.
                    body = b"\0\0\0\0\2\x0a\0"
                    connection.sendall(grpc.frame(grpc.DATA, 0, stream, body))
                    connection.sendall(grpc.frame(grpc.HEADERS, grpc.END_STREAM | grpc.END_HEADERS, stream, b""))

    def stop(self):
        self.listener.close()
        for connection in self.connections:
            # Else the thread that reads would keep it open.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.001)


class Puts(unittest.TestCase):
    def setUp(self):
        self.member = Member()
        self.addCleanup(self.member.stop)

    def test_the_first_put_after_a_moment_is_one_that_began_after_it(self):
        with steady.SteadyPuts(self.member.address, b"p/", every=0.002) as puts:
            wait_for(lambda: len(puts.since(0)) > 10)
            self.member.takes = False
            time.sleep(0.05)
            moment = time.monotonic()
            time.sleep(0.2)
            self.assertEqual(puts.since(moment), [])
            taken_again = time.monotonic()
            self.member.takes = True
            wait_for(lambda: puts.since(moment))
            first = min(puts.since(moment))
            self.assertGreater(first, taken_again)
            # Not one to wait for the answers of those that were asked in vain.
            self.assertLess(first - taken_again, steady.PUT_SECONDS)
        self.assertIsNone(puts.lost)
        self.assertLessEqual(puts.acknowledged_keys(), set(self.member.keys))
        self.assertLess(len(puts.acknowledged), len(puts.began))

    def test_puts_come_at_a_pace_answered_or_not_and_are_given_up_in_time(self):
        self.member.takes = False
        with mock.patch.object(steady, "PUT_SECONDS", 0.05):
            with steady.SteadyPuts(self.member.address, b"p/", every=0.005) as puts:
                wait_for(lambda: self.member.cancelled > 10)
        self.assertEqual(puts.acknowledged, {})
        gaps = [later - earlier for earlier, later in zip(puts.began, puts.began[1:])]
        self.assertGreater(len(gaps), 15)
        self.assertLess(sorted(gaps)[len(gaps) // 2], 0.02)

    def test_a_connection_that_ends_is_told(self):
        with steady.SteadyPuts(self.member.address, b"p/") as puts:
            wait_for(lambda: puts.acknowledged)
            self.member.stop()
            wait_for(lambda: puts.lost)

    def test_nobody_there_is_a_failed_call(self):
        with self.assertRaises(grpc.CallFailed), steady.SteadyPuts("127.0.0.1:1", b"p/"):
            pass


class Clusters(unittest.TestCase):
    """A cluster whose members are processes that do nothing; what they would answer comes from here."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        program = self.folder / "program"
        program.write_text("#!/bin/sh\nexec sleep 100\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        with mock.patch.object(cluster.Server, "start", stand_still):
            self.cluster = Cluster("etcd 3.5.1", program, self.folder)

    def test_members_know_each_other_and_have_places_of_their_own(self):
        flags = [dict(zip(each.command, each.command[1:], strict=False)) for each in self.cluster.members]
        self.assertEqual([each["--name"] for each in flags], list(cluster.NAMES))
        self.assertEqual(len({each["--initial-cluster"] for each in flags}), 1)
        for flag in ("--data-dir", "--listen-client-urls", "--listen-peer-urls"):
            self.assertEqual(len({each[flag] for each in flags}), 3, flag)
        for each in flags:
            expected = f"{each['--name']}={each['--initial-advertise-peer-urls']}"
            self.assertIn(expected, each["--initial-cluster"].split(","))

    def test_the_leader_is_whoever_says_so(self):
        third = self.cluster.members[2]

        def leads(address):
            if address == self.cluster.members[0].address:
                raise grpc.CallFailed("down")
            return address == third.address

        with mock.patch.object(cluster.grpc, "leads", leads):
            self.cluster.look_who_leads(1)
        self.assertIs(self.cluster.leader, third)
        self.assertEqual(self.cluster.address, third.address)
        with mock.patch.object(cluster.grpc, "leads", lambda _: False), self.assertRaises(Failure) as failure:
            self.cluster.look_who_leads(0.1)
        self.assertIn("no leader", str(failure.exception))

    def test_figures_are_the_members_together(self):
        self.assertEqual(cluster.add([{"a": 1, "b": 2}, {"a": 3, "c": 4}]), {"a": 4, "b": 2, "c": 4})

    def test_a_kill_costs_as_long_as_no_member_takes_writes(self):
        """The leader's end, and 0.3 s later the first of the others' answers; all of it told as it was."""
        members = self.members()
        times = []

        def kill(_):
            for member in members:
                member.takes = False
            times.append(time.monotonic())
            threading.Thread(target=go_on).start()

        def go_on():
            time.sleep(0.3)
            members[1].takes = True
            times.append(time.monotonic())
            time.sleep(0.3)
            members[0].takes = True

        leader = self.cluster.members[0]
        leader.process.send_signal = kill
        found = self.fail_over(members)
        leader.start.assert_called_once()
        self.assertGreater(found.gap_seconds, times[1] - times[0] - 0.001)
        self.assertLess(found.gap_seconds, times[1] - times[0] + 0.25)
        self.assertTrue(found.holds(), found.said())
        self.assertGreaterEqual(found.acknowledged, 4 * cluster.LEAD_PUTS)
        self.assertLess(found.acknowledged, found.begun)

    def test_an_acknowledged_put_that_is_not_there_is_told(self):
        members = self.members()
        self.cluster.members[0].process.send_signal = lambda _: None
        found = self.fail_over(members, forgotten=members[1].keys)
        self.assertGreaterEqual(found.missing, cluster.LEAD_PUTS)
        self.assertLess(found.missing, found.acknowledged)
        self.assertFalse(found.holds())

    def members(self):
        """Those that are not the leader."""
        members = [Member(), Member()]
        for server, member in zip(self.cluster.members[1:], members, strict=True):
            self.addCleanup(member.stop)
            server.address = member.address
        leader = self.cluster.members[0]
        leader.start, leader.await_ready = mock.Mock(), mock.Mock()
        return members

    def fail_over(self, members, forgotten=()):
        def keys(_, prefix):
            return {key for each in members for key in each.keys if key.startswith(prefix) and key not in forgotten}

        patches = {
            "leads": lambda address: address == self.cluster.members[0].address,
            "keys": keys,
            "revision": lambda _: 1 + sum(len(member.keys) for member in members),
            "hash_kv": lambda *_: {"hash": 7},
        }
        with mock.patch.multiple(cluster.grpc, **patches):
            return self.cluster.fail_over(3)

    def test_a_member_that_gives_its_clients_up_is_a_failure(self):
        members = self.members()
        self.cluster.members[0].process.send_signal = lambda _: members[0].stop()
        with self.assertRaises(Failure) as failure:
            self.fail_over(members)
        self.assertIn("connection", str(failure.exception))

    def test_what_is_lost_or_differs_does_not_hold(self):
        whole = dict(
            gap_seconds=1.0, begun=20, acknowledged=10, missing=0, risen=12, revisions=(5, 5, 5), hashes=(7, 7, 7)
        )
        self.assertTrue(Failover(**whole).holds())
        self.assertIn("all 10 of 10", Failover(**whole).said())
        for wrong in (
            {"missing": 1},
            {"risen": 9},
            {"risen": 21},
            {"revisions": (5, 5, 4)},
            {"hashes": (7, 7, 8)},
        ):
            self.assertFalse(Failover(**{**whole, **wrong}).holds(), wrong)
        self.assertIn("9 of 10", Failover(**{**whole, "missing": 1}).said())


def stand_still(server):
    server.process = mock.Mock(pid=1)
    server.log.write_text("")


if __name__ == "__main__":
    unittest.main()
