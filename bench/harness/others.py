"""Load generators of other people: h2load, and etcd's own `benchmark`. What each saw, in the words of ours."""

import os
import re
import subprocess
import time

from . import grpc
from .machine import ROOT, TARGET, Failure

PROGRAM = TARGET / "etcd-benchmark/benchmark"
KEY = b"/bench/key/000000000"


def build():
    """etcd's tool, from the Go module proxy."""
    if subprocess.run([ROOT / "scripts/setup-tests", "etcd-benchmark"]).returncode != 0:
        raise Failure("etcd's benchmark could not be built; what was said is above")


def h2load(server, method, message, seconds, directory):
    """Calls a second of one method with one message, 16 connections with 32 in flight each; None when one failed."""
    body = directory / "h2load-body"
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    command = ["taskset", "-c", server.load_core, "h2load", "-c16", "-m32", f"-D{max(1, round(seconds))}"]
    command += ["-d", str(body), "-H", "content-type: application/grpc", "-H", "te: trailers"]
    command += [f"http://{server.address}/{method}"]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    if " 0 failed, 0 errored, 0 timeout" not in text:
        return None
    line = next(line for line in text.splitlines() if line.startswith("finished in"))
    return float(line.split(",")[1].split()[0])


def get_message():
    return grpc.message(f1=KEY)


def put_message(value_bytes):
    return grpc.message(f1=KEY, f2=b"v" * value_bytes)


def benchmark(server, words, seconds_max=300):
    """One run of etcd's tool: its last summary, the CPU time it took, and the server's."""
    command = ["taskset", "-c", server.load_core, str(PROGRAM), "--endpoints", server.address, "--precise", *words]
    command = [str(word) for word in command]
    # The tool has one core; more threads than that would only take turns on it.
    environment = {**os.environ, "GOMAXPROCS": "1"}
    began, server_began = time.monotonic(), server.cpu_seconds()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as process:
        try:
            text = process.communicate(timeout=seconds_max)[0].decode(errors="replace")
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise Failure(f"etcd's benchmark has not ended after {seconds_max} s: {' '.join(command)}") from error
    elapsed, server_cpu = time.monotonic() - began, server.cpu_seconds() - server_began
    found = parse(text)
    if process.returncode != 0 or found is None:
        raise Failure(f"etcd's benchmark failed: {' '.join(command)}\n{text[-2000:]}")
    return {**found, "elapsed": elapsed, "server_cpu": server_cpu}


def parse(text):
    """The figures of the last summary in what the tool printed; None without one, or when calls failed."""
    at = text.rfind("Summary:")
    if at < 0 or "Error distribution" in text:
        return None
    summary = text[at:]

    def after(pattern):
        found = re.search(pattern, summary)
        return float(found.group(1)) if found else None

    number = r"\s*([0-9.e+-]+)"
    return {
        "rate": after(r"Requests/sec:" + number),
        "seconds": after(r"Total:" + number),
        "mean_us": scaled(after(r"Average:" + number)),
        "p50_us": scaled(after(r"\b50% in" + number)),
        "p99_us": scaled(after(r"\b99% in" + number)),
    }


def scaled(seconds):
    return None if seconds is None else 1e6 * seconds
