"""Three members of one program, measured as one server: all of them on core 0, the load at the one that leads."""

import contextlib
import shutil
import signal
import time
from dataclasses import dataclass

from . import grpc
from .machine import TARGET, Failure
from .server import READY_SECONDS, RESTART_SECONDS, Place, Server, free_ports
from .steady import SteadyPuts

NAMES = ("one", "two", "three")
# Puts that come through at each of the other members before the leader is killed, and again afterwards.
LEAD_PUTS = 30
# How long none may come through.
GAP_SECONDS_MAX = 60
FAILOVER_KEYS = b"/failover/"


@dataclass(frozen=True)
class Failover:
    """What came of a leader's kill beside steady puts at the other members, when it was back."""

    # From the kill to the first acknowledgement of a put that began after it, at whichever member.
    gap_seconds: float
    # Puts: those begun, those acknowledged, and how many of the latter are not there.
    begun: int
    acknowledged: int
    missing: int
    # By how much the revision rose.
    risen: int
    # Every member's revision, and its hash over the history up to the first one's.
    revisions: tuple
    hashes: tuple

    def holds(self):
        """Whether nothing acknowledged was lost and all members have the same, the one that was killed too."""
        nothing_lost = self.missing == 0 and self.acknowledged <= self.risen <= self.begun
        return nothing_lost and len(set(self.revisions)) == 1 and len(set(self.hashes)) == 1

    def said(self):
        there = f"all {self.acknowledged}" if not self.missing else f"{self.acknowledged - self.missing}"
        hashes, revisions = sorted(set(self.hashes)), sorted(set(self.revisions))
        return (
            f"{there} of {self.acknowledged} acknowledged puts are there, of {self.begun} begun, {self.risen} written; "
            f"then the members are at revision {' and '.join(map(str, revisions))} with HashKV "
            + " and ".join(f"{value:08x}" for value in hashes)
        )


class Cluster:
    """As a `Server` to those who measure. Its figures are its members' together."""

    def __init__(self, name, program, directory, loader=TARGET / "release/ringd-bench", peer=None, cores=1):
        ports = free_ports(2 * len(NAMES))
        peers = dict(zip(NAMES, ports[len(NAMES) :], strict=True))
        self.name, self.program = name, program
        self.members = [
            Server(f"{name} {member}", program, directory, loader, cores=cores, place=Place(member, port, peers))
            for member, port in zip(NAMES, ports, strict=False)
        ]
        self.command = self.members[0].command
        self.leader = self.members[0]

    @property
    def address(self):
        return self.leader.address

    def await_ready(self, seconds=READY_SECONDS):
        """Waits until every member answers linearizable reads, and looks who leads."""
        for member in self.members:
            found = member.await_ready(seconds)
        self.look_who_leads(seconds)
        return found

    def look_who_leads(self, seconds=READY_SECONDS):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for member in self.members:
                try:
                    if grpc.leads(member.address):
                        self.leader = member
                        return
                except grpc.CallFailed:
                    pass
            time.sleep(0.05)
        raise Failure(f"{self.name} has no leader; the members' logs end with:\n{self.log_end()}")

    def log_end(self):
        return "\n".join(f"{member.name}: {member.log_end()}" for member in self.members)

    def load(self, command, *flags, seconds_max=None, follower=False):
        self.look_who_leads()
        asked = self.leader
        if follower:
            asked = next(member for member in self.members if member is not self.leader)
        processes = ",".join(str(member.process.pid) for member in self.members)
        return asked.load(command, *flags, seconds_max=seconds_max, processes=processes)

    def has_ended(self):
        return any(member.has_ended() for member in self.members)

    def cpu_seconds(self):
        return sum(member.cpu_seconds() for member in self.members)

    def memory(self):
        return add(member.memory() for member in self.members)

    def forget_peak(self):
        for member in self.members:
            member.forget_peak()

    def file_bytes(self):
        return add(member.file_bytes() for member in self.members)

    def hashes(self):
        """Every member's revision, and its hash over the whole history up to the leader's revision."""
        revision = grpc.revision(self.address)
        revisions = [grpc.revision(member.address) for member in self.members]
        return tuple(revisions), tuple(grpc.hash_kv(member.address, revision)["hash"] for member in self.members)

    def fail_over(self, number):
        """Kills the leader beside steady puts at the others, and starts it again; `number` tells kills apart."""
        self.look_who_leads()
        dead = self.leader
        others = [member for member in self.members if member is not dead]
        before = grpc.revision(self.address)
        prefixes = {member: FAILOVER_KEYS + b"%d/%d/" % (number, at) for at, member in enumerate(others)}
        with contextlib.ExitStack() as stack:
            core = int(dead.load_core)
            puts = [stack.enter_context(SteadyPuts(each.address, prefixes[each], core)) for each in others]
            self.await_puts(puts, 0, "before the kill")
            killed = time.monotonic()
            dead.process.send_signal(signal.SIGKILL)
            dead.process.wait()
            self.await_puts(puts, killed, "after its leader was killed")
            first = min(min(each.since(killed)) for each in puts)
        dead.start()
        dead.await_ready(RESTART_SECONDS)
        self.look_who_leads()
        acknowledged = set().union(*(each.acknowledged_keys() for each in puts))
        there = set().union(*(grpc.keys(self.address, prefix) for prefix in prefixes.values()))
        revisions, hashes = self.hashes()
        return Failover(
            gap_seconds=first - killed,
            begun=sum(len(each.began) for each in puts),
            acknowledged=len(acknowledged),
            missing=len(acknowledged - there),
            risen=revisions[0] - before,
            revisions=revisions,
            hashes=hashes,
        )

    def await_puts(self, puts, moment, when):
        """Waits until enough of those that began after `moment` have come through at every member asked."""
        deadline = time.monotonic() + GAP_SECONDS_MAX
        while any(len(each.since(moment)) < LEAD_PUTS for each in puts):
            lost = next((each.lost for each in puts if each.lost), None)
            if lost or time.monotonic() > deadline:
                reason = lost or f"too few came through within {GAP_SECONDS_MAX} s"
                raise Failure(f"puts {when} at {self.name}: {reason}; the members' logs end with:\n{self.log_end()}")
            time.sleep(0.01)

    def stop(self, how=signal.SIGTERM):
        for member in self.members:
            if how == signal.SIGKILL or member is not self.leader:
                member.stop(how)
        self.leader.stop(how)
        for member in self.members:
            shutil.rmtree(member.data, ignore_errors=True)


def add(each):
    """Figures of several, by name."""
    total = {}
    for figures in each:
        for name, value in figures.items():
            total[name] = total.get(name, 0) + value
    return total
