#!/bin/sh
# Three members on this machine, or one more of them.
set -eu
usage() {
    cat <<'END'
usage: scripts/cluster.sh                     starts three members, until Ctrl-C
       scripts/cluster.sh one|two|three       starts one of them again, after it ended
       scripts/cluster.sh join NAME CLIENT-PORT PEER-PORT
                                              starts one that `etcdctl member add` has announced

Clients: http://127.0.0.1:2379, :22379 and :32379. Data: ./cluster, or $CLUSTER; it is gone on with at the next start.
$RINGD is the program; without it one is built.
END
}
directory=${CLUSTER:-cluster}
members=one=http://127.0.0.1:2380,two=http://127.0.0.1:22380,three=http://127.0.0.1:32380
case "${1:-all} $#" in
    "all 0" | "one 1" | "two 1" | "three 1" | "join 4") ;;
    "-h 1" | "--help 1") usage; exit ;;
    *) usage >&2; exit 2 ;;
esac

root=$(cd "$(dirname "$0")/.." && pwd)
ringd=${RINGD:-}
if [ -z "$ringd" ]; then
    (cd "$root" && cargo build --release --locked --bin ringd)
    ringd=$root/target/release/ringd
fi
mkdir -p "$directory"

# NAME CLIENT-PORT PEER-PORT [FLAGS]
member() {
    name=$1 client=http://127.0.0.1:$2 peer=http://127.0.0.1:$3
    shift 3
    exec "$ringd" --name "$name" --data-dir "$directory/$name" --cores 1 \
        --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "$members" --initial-cluster-token cluster-on-one-machine "$@"
}
one() { member one 2379 2380; }
two() { member two 22379 22380; }
three() { member three 32379 32380; }

case "${1:-all}" in
    one | two | three) "$1" ;;
    join)
        members=$members,$2=http://127.0.0.1:$4
        member "$2" "$3" "$4" --initial-cluster-state existing
        ;;
esac

# Its lines begin with its name.
watched() {
    {
        "$1" 2>&1 &
        echo $! >"$directory/$1.pid"
        wait $! || echo "ended with code $?"
    } | sed -u "s/^/$1: /" &
}
stop() {
    trap - INT TERM EXIT
    for name in one two three; do
        kill "$(cat "$directory/$name.pid")" 2>/dev/null || true
        rm -f "$directory/$name.pid"
    done
    wait
}
trap stop INT TERM EXIT
for name in one two three; do
    watched "$name"
done
wait
