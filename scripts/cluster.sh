#!/bin/sh
# Three members on this machine, until Ctrl-C. Clients: http://127.0.0.1:2379, :22379 and :32379.
# Their data is in ./cluster (or the directory given), and is gone on with at the next start.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
directory=${1:-cluster}
ringd=${RINGD:-}
if [ -z "$ringd" ]; then
    (cd "$root" && cargo build --release --locked)
    ringd=$root/target/release/ringd
fi
mkdir -p "$directory"
members=one=http://127.0.0.1:2380,two=http://127.0.0.1:22380,three=http://127.0.0.1:32380
processes=
start() {
    "$ringd" --name "$1" --data-dir "$directory/$1" --cores 1 \
        --listen-client-urls "http://127.0.0.1:$2" --advertise-client-urls "http://127.0.0.1:$2" \
        --listen-peer-urls "http://127.0.0.1:$3" --initial-advertise-peer-urls "http://127.0.0.1:$3" \
        --initial-cluster "$members" --initial-cluster-token cluster-on-one-machine &
    processes="$processes $!"
}
stop() {
    trap - INT TERM EXIT
    # shellcheck disable=SC2086 # a list
    kill $processes 2>/dev/null || true
    wait
}
trap stop INT TERM EXIT
start one 2379 2380
start two 22379 22380
start three 32379 32380
wait
