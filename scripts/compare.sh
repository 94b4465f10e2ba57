#!/usr/bin/env bash
# Compares ringd with etcd on this machine and makes a report of it, with pictures: `scripts/compare.sh --help`.
# This part only sees that what it takes is there; bench/harness/compare.py does the work.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"

need() {
    command -v "$1" >/dev/null || { echo "compare: $1 is not installed, and $2" >&2; exit 1; }
}

[[ "$(uname -s)" == Linux ]] || { echo "compare: ringd runs on Linux only, and this is $(uname -s)" >&2; exit 1; }
need python3 "the comparison is written in it"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    { echo "compare: Python 3.10 or newer is needed, and this is $(python3 --version)" >&2; exit 1; }
need taskset "the servers and the load are pinned with it (package util-linux)"
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$root/bench" exec python3 -m harness.compare "$@"
