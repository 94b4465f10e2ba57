"""Three members of one program, measured as one server: all of them on core 0, the load at the one that leads."""

import shutil
import signal
import time

from . import grpc
from .machine import TARGET, Failure
from .server import READY_SECONDS, RESTART_SECONDS, Place, Server, free_ports

NAMES = ("one", "two", "three")
# How long a put may take before another member is asked instead, and how long there may be no leader at all.
PUT_SECONDS, GAP_SECONDS_MAX = 0.25, 60
PROBE_KEY = b"/failover/key"


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
        """What each member has: the hash over its history up to the leader's revision."""
        revision = grpc.revision(self.address)
        deadline = time.monotonic() + READY_SECONDS
        found = []
        for member in self.members:
            # A follower gets there a moment later.
            while grpc.revision(member.address) < revision and time.monotonic() < deadline:
                time.sleep(0.01)
            found.append(grpc.hash_kv(member.address, revision)["hash"])
        return revision, found

    def fail_over(self):
        """Kills the leader; seconds until another member has answered a put. It is back with all it lacked then."""
        self.look_who_leads()
        dead = self.leader
        others = [member for member in self.members if member is not dead]
        put = grpc.message(f1=PROBE_KEY, f2=b"x")
        grpc.call(dead.address, "etcdserverpb.KV/Put", put)
        dead.process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        dead.process.wait()
        turn = 0
        while True:
            try:
                grpc.call(others[turn % len(others)].address, "etcdserverpb.KV/Put", put, timeout=PUT_SECONDS)
                break
            except grpc.CallFailed:
                turn += 1
                time.sleep(0.005)
            if time.monotonic() - began > GAP_SECONDS_MAX:
                raise Failure(f"{self.name} takes no writes after its leader was killed:\n{self.log_end()}")
        gap = time.monotonic() - began
        dead.start()
        dead.await_ready(RESTART_SECONDS)
        self.look_who_leads()
        return gap

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
