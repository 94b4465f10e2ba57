"""What is measured on: processor, memory, kernel, disk and the commit."""

import datetime
import os
import pathlib
import platform
import shutil
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()


class Failure(Exception):
    """Why there are no numbers."""


def sync_latency(directory, writes=300):
    """Microseconds of a 4 KiB overwrite and its fdatasync, at p50 and p99."""
    path = directory / "sync"
    samples = []
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.write(descriptor, bytes(1 << 20))
        os.fsync(descriptor)
        for number in range(writes):
            began = time.perf_counter()
            os.pwrite(descriptor, bytes(4096), number % 256 * 4096)
            os.fdatasync(descriptor)
            samples.append((time.perf_counter() - began) * 1e6)
    finally:
        os.close(descriptor)
        path.unlink()
    samples.sort()
    return {"p50_us": samples[writes // 2], "p99_us": samples[writes * 99 // 100]}


def git(*arguments):
    try:
        run = subprocess.run(["git", "-C", str(ROOT), *arguments], stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        return "unknown"
    return run.stdout.strip() if run.returncode == 0 else "unknown"


def machine(directory):
    """The facts without which a figure means nothing; `directory` lies on the disk that the servers use."""
    cpu = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "changed": git("status", "--porcelain", "--untracked-files=no") != "",
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load_at_start": os.getloadavg()[0],
        "sync": sync_latency(directory),
    }


def memory_bytes():
    """All of the machine's memory, and what of it could be had now."""
    fields = {}
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) * 1024
    return fields["MemTotal"], fields["MemAvailable"]


def disk(directory):
    """The kind of file system under a directory, its device, and the bytes free on it."""
    found = ("unknown", "unknown")
    longest = -1
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        inside = pathlib.Path(mount) in [directory, *directory.parents]
        if inside and len(mount) > longest:
            longest, found = len(mount), (kind, device)
    return {"file_system": found[0], "device": found[1], "free_bytes": shutil.disk_usage(directory).free}
