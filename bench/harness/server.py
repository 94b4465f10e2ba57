"""A server under load: its process on its core, the load generator on another, what it takes of memory and disk."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from . import grpc
from .machine import TARGET, Failure

SERVER_CORE = "0"
# The keys, and room for the history that the puts leave.
QUOTA_BYTES = 16 << 30
READY_SECONDS, RESTART_SECONDS = 60, 300
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class NotAvailable(Exception):
    """The load generator at hand lacks what a scenario needs."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a member of a cluster is: its name, its client port, and every member's peer port by name."""

    member: str
    client: int
    peers: dict


class Server:
    """One server on core 0, or on so many of the first, with a data directory of its own in `directory`, named for
    people by `name`. The load has the core behind them, or the machine's last."""

    def __init__(self, name, program, directory, loader=TARGET / "release/ringd-bench", peer=None, cores=1, place=None):
        self.name, self.program, self.loader = name, program, loader
        self.load_core = str(min(cores, os.cpu_count() - 1))
        plain = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in name)
        self.log, self.data = directory / f"{plain}.log", directory / plain
        if place is None:
            client, listen = free_ports(2)
            place = Place("default", client, {"default": listen})
        listen = place.peers[place.member]
        self.address = f"127.0.0.1:{place.client}"
        # What a member is known by: a copy of a data directory has to keep it.
        self.peer = peer or f"http://127.0.0.1:{listen}"
        urls = {member: f"http://127.0.0.1:{port}" for member, port in place.peers.items()} | {place.member: self.peer}
        self.command = [
            "taskset", "-c", SERVER_CORE if cores == 1 else f"0-{cores - 1}", str(program),
            "--name", place.member, "--data-dir", str(self.data), "--log-level", "warn", f"--quota-backend-bytes={QUOTA_BYTES}",
            "--listen-client-urls", f"http://{self.address}", "--advertise-client-urls", f"http://{self.address}",
            "--listen-peer-urls", f"http://127.0.0.1:{listen}",
            "--initial-advertise-peer-urls", self.peer, "--initial-cluster", ",".join(f"{member}={url}" for member, url in urls.items()),
        ]  # fmt: skip
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            try:
                self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
            except FileNotFoundError as error:
                raise Failure(f"{error.filename} is not installed; it pins the servers to their core") from error

    def await_ready(self, seconds=READY_SECONDS):
        """Waits until a linearizable read succeeds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                return grpc.count(self.address)
            except grpc.CallFailed:
                time.sleep(0.005)
        raise Failure(f"{self.name} does not serve {self.address}; its log ends with:\n{self.log_end()}")

    def log_end(self):
        return self.log.read_text(errors="replace")[-2000:]

    def has_ended(self):
        return self.process.poll() is not None

    def load(self, command, *flags, seconds_max=None, processes=None):
        """Runs the load on its core and returns what it saw. The server's figures are those of `processes`."""
        loader = ["taskset", "-c", self.load_core, str(self.loader), command, "--address", self.address]
        loader += ["--process", processes or str(self.process.pid), *map(str, flags)]
        try:
            run = subprocess.run(loader, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds_max)
        except subprocess.TimeoutExpired as error:
            end = f"has not ended after {error.timeout:.0f} s; the server's log ends with:\n{self.log_end()}"
            raise Failure(f"the {command} load on {self.name} {end}") from error
        if run.returncode == 2:
            raise NotAvailable(run.stderr.splitlines()[0] if run.stderr else "refused its arguments")
        if run.returncode != 0:
            said = f"{run.stderr.strip()}\nthe server's log ends with:\n{self.log_end()}"
            raise Failure(f"the {command} load on {self.name} failed: {said}")
        return json.loads(run.stdout)

    def cpu_seconds(self):
        """Of the process so far, its kernel workers included."""
        words = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / TICKS_PER_SECOND

    def memory(self):
        """Resident bytes: all, those without a file's pages behind them, and the most since `forget_peak`."""
        found = {}
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(("VmRSS:", "RssAnon:", "VmHWM:")):
                name, kibibytes = line.split()[:2]
                found[name] = int(kibibytes) * 1024
        return {"rss_bytes": found["VmRSS:"], "rss_anonymous_bytes": found["RssAnon:"], "peak_bytes": found["VmHWM:"]}

    def forget_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def file_bytes(self):
        """Bytes that the data directory takes on the disk: the log's and the others'."""
        log, others = 0, 0
        for folder, _, names in os.walk(self.data):
            for name in names:
                try:
                    taken = os.stat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    continue
                if os.path.basename(folder) == "wal":
                    log += taken
                else:
                    others += taken
        return {"wal_bytes": log, "store_bytes": others, "file_bytes": log + others}

    def hashes(self):
        """The revision, and the hash over the whole history up to it; as a cluster has them for each of its members."""
        revision = grpc.revision(self.address)
        return (revision,), (grpc.hash_kv(self.address, revision)["hash"],)

    def copy(self, directory):
        """Another server on what a kill -9 at this moment would leave, and the seconds from its start to its first
        linearizable read. This one stands still meanwhile and goes on untouched."""
        directory.mkdir()
        self.process.send_signal(signal.SIGSTOP)
        try:
            shutil.copytree(self.data, directory / self.data.name)
        finally:
            self.process.send_signal(signal.SIGCONT)
        os.sync()
        began = time.monotonic()
        other = Server(self.name, self.program, directory, self.loader, self.peer)
        try:
            other.await_ready(RESTART_SECONDS)
        except Failure:
            other.stop(signal.SIGKILL)
            raise
        return other, time.monotonic() - began

    def restart(self):
        """Ends the process and starts it again; seconds from the start to the first linearizable read."""
        self.stop()
        began = time.monotonic()
        self.start()
        self.await_ready(RESTART_SECONDS)
        return time.monotonic() - began

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def settle(servers, seconds_max):
    """Waits until no server works on what the load left behind, so that one's rest is not measured as another's."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        before = [server.cpu_seconds() for server in servers]
        time.sleep(0.25)
        # A twentieth of the core, all together.
        if sum(server.cpu_seconds() for server in servers) - sum(before) <= 0.25 * 0.05 + 1e-9:
            return


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
