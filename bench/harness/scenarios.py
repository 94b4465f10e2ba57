"""What is run, on whom, and what is aimed at: tables, so that a scenario is a row.

A scenario names what the load generator is asked (`ringd-bench COMMAND FLAGS`). One that the load generator at hand
does not know, or whose flag it lacks, is reported as not available; nothing else depends on it.
"""

from dataclasses import dataclass, field

VALUE_BYTES = 256
DEEP = ("--connections", 16, "--streams", 32)
# For values of so many bytes and more.
FEW, LARGE_BYTES = ("--connections", 4, "--streams", 2), 65_536
SHALLOW = ("--connections", 1, "--streams", 1)
# Of its maximum in closed loop, what the first reference can carry steadily when calls arrive on a schedule.
STEADY_SHARE = 0.9


@dataclass(frozen=True)
class Goal:
    """A ratio of ringd's figure to the reference's: at least or at most that much, one of the two."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    # What else than a scenario's run it is judged by, for people.
    title: str = ""


@dataclass(frozen=True)
class Scenario:
    """One row. `share` fixes the arrivals at that share of the first reference's rate in the scenario `share_of`."""

    name: str
    title: str
    command: str
    flags: tuple = DEEP
    goals: tuple = ()
    # Runs of the load generator that come first, once on each server: (command, flags).
    prepare: tuple = ()
    # The etcd version that the call came with.
    since: tuple = (0,)
    share_of: str | None = None
    share: float = 0.0
    # Whether the command takes the usual flags beside its own: keys, seed, histogram.
    usual_flags: bool = True
    # Instead of the form's; the full form has its own rounds for all.
    seconds: float | None = None
    rounds: int | None = None
    # In the full form: flags that come behind the others, and how long its one run takes.
    full_flags: tuple = ()
    full_seconds: float | None = None
    # Of a cluster: whether a follower is asked instead of the leader.
    follower: bool = False


@dataclass(frozen=True)
class Curve:
    """Open loop at growing shares of each server's own maximum, which is its rate in the scenario `of`."""

    name: str
    title: str
    of: str
    command: str
    flags: tuple = DEEP
    shares: tuple = (0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Stage:
    """Servers started anew, filled with the same keys, and what is run on them in turn."""

    name: str
    title: str
    keys: int
    value_bytes: int
    quick_keys: int
    scenarios: tuple
    curves: tuple = ()
    # The stage that memory, file size and restart are taken from.
    measures_store: bool = False
    # More than one are a cluster, whose leader is killed in the end.
    members: int = 1


@dataclass(frozen=True)
class Sweep:
    """One dimension, the others as usual; each value on fresh servers."""

    name: str
    title: str
    unit: str
    values: tuple
    # What a value changes: `keys`, `value_bytes`, `versions`, `watchers`, `cores`, or a flag of the load.
    sets: str
    scenarios: tuple
    usual: dict = field(default_factory=dict)


PUT = Scenario(
    "put",
    "Durable puts, 512 in flight",
    "put",
    goals=(Goal("rate", at_least=12), Goal("server_cpu_us", at_most=1 / 15)),
)
GET = Scenario(
    "get",
    "Linearizable gets, 512 in flight",
    "get",
    goals=(Goal("rate", at_least=12), Goal("server_cpu_us", at_most=1 / 15)),
)
MANY_WATCHERS = 50_000
WATCH_GOALS = (Goal("event_rate", at_least=10), Goal("p99_us", at_most=1 / 10))


def watchers(number):
    """Flags for so many watches of one key, each on a stream of its own, at most a thousand streams to a connection."""
    connections = max(min(10, number), number // 1000)
    # Of so many events to a put, one put at a time is enough: more would wait until they time out.
    depth = ("--depth", 1) if number >= MANY_WATCHERS else ()
    return ("--connections", connections, "--streams", number // connections, *depth)


POINTS = Stage(
    "points",
    "Puts, gets and transactions",
    keys=1_000_000,
    value_bytes=VALUE_BYTES,
    quick_keys=5_000,
    measures_store=True,
    scenarios=(
        PUT,
        GET,
        Scenario(
            "get-serializable",
            "Serializable gets, 512 in flight",
            "get",
            (*DEEP, "--consistency", "s"),
            goals=(Goal("rate", at_least=12), Goal("server_cpu_us", at_most=1 / 15)),
        ),
        Scenario(
            "mixed",
            "Half puts, half linearizable gets",
            "mixed",
            (*DEEP, "--read-share", 50),
            goals=(Goal("rate", at_least=8),),
        ),
        Scenario("txn-put", "Transactions of one put", "txn-put", rounds=1),
        Scenario(
            "txn-mixed", "Half transactions that put, half that get", "txn-mixed", (*DEEP, "--read-share", 50), rounds=1
        ),
        Scenario("stm", "Software transactions of two keys, one written", "stm", rounds=1),
        Scenario("put-1", "Durable puts, one at a time", "put", SHALLOW, goals=(Goal("p50_us", at_most=1),)),
        Scenario("get-1", "Linearizable gets, one at a time", "get", SHALLOW, goals=(Goal("p50_us", at_most=1),)),
        Scenario(
            "put-same-load",
            "Durable puts arriving at the most that etcd carries",
            "put",
            share_of="put",
            share=STEADY_SHARE,
            goals=(
                Goal("p50_us", at_most=1 / 6),
                Goal("p90_us", at_most=1 / 20),
                Goal("p99_us", at_most=1 / 4),
            ),
        ),
        Scenario("put-long", "Durable puts, 512 in flight, over a longer time", "put", seconds=15, rounds=1),
    ),
    curves=(
        Curve("put", "Durable puts arriving on a schedule", "put", "put"),
        Curve("get", "Linearizable gets arriving on a schedule", "get", "get"),
    ),
)

LISTS = Stage(
    "lists",
    "Lists",
    keys=100_000,
    value_bytes=1024,
    quick_keys=2_000,
    scenarios=(
        Scenario(
            "list",
            "Lists of all keys in one Range",
            "range",
            SHALLOW,
            goals=(Goal("byte_rate", at_least=5), Goal("extra_memory_bytes", at_most=1 / 20)),
        ),
        Scenario(
            "list-pages",
            "Lists in pages of 500 keys",
            "range",
            ("--connections", 4, "--streams", 1, "--limit", 500),
            rounds=1,
        ),
        Scenario(
            "list-prefix",
            "Lists of the 1 000 keys with a common prefix",
            "range",
            ("--connections", 4, "--streams", 1, "--prefix-digits", 3),
            rounds=1,
        ),
        Scenario(
            "list-paginated",
            "Lists of all keys by pages of 10 000 at one revision",
            "range",
            (*SHALLOW, "--paginate", 1),
            rounds=1,
        ),
        Scenario(
            "list-stream",
            "Lists of all keys in one RangeStream",
            "range",
            (*SHALLOW, "--stream", 1),
            since=(3, 7),
            goals=(Goal("byte_rate", at_least=5), Goal("extra_memory_bytes", at_most=1 / 20)),
        ),
        Scenario(
            "apiserver-restart",
            "An apiserver starts anew: 20 resources listed by pages of 500 and watched, beside 500 puts a second",
            "apiserver-restart",
            ("--connections", 1, "--streams", 20, "--limit", 500, "--put-rate", 500),
            rounds=1,
        ),
    ),
)

WATCHES = Stage(
    "watches",
    "Watches, leases and Kubernetes",
    keys=10_000,
    value_bytes=VALUE_BYTES,
    quick_keys=1_000,
    scenarios=(
        Scenario(
            "watch", "One write to 1 000 watchers", "watch", watchers(1_000), goals=WATCH_GOALS, usual_flags=False
        ),
        Scenario(
            "watch-10k", "One write to 10 000 watchers", "watch", watchers(10_000), goals=WATCH_GOALS, usual_flags=False
        ),
        Scenario(
            "watch-latency",
            "Events of 20 puts a second, 1 000 watchers",
            "watch-latency",
            (*watchers(1_000), "--watches", 1, "--rate", 20),
            usual_flags=False,
        ),
        Scenario(
            "watch-get",
            "Serializable gets while 10 000 watchers catch up",
            "watch-get",
            ("--watchers", 10_000),
            usual_flags=False,
            rounds=1,
        ),
        Scenario("lease-grant", "Leases granted", "lease-grant"),
        Scenario(
            "lease-churn", "Leases granted, a key attached, revoked", "lease-churn", goals=(Goal("rate", at_least=5),)
        ),
        Scenario("lease-keepalive", "Leases kept alive", "lease-keepalive", goals=(Goal("rate", at_least=10),)),
        Scenario(
            "lease-flood",
            "2 000 leases with a key each, left to expire",
            "lease-flood",
            (*DEEP, "--leases", 2_000),
            rounds=1,
        ),
        # In the full form as many nodes as a test of a few seconds can make first.
        Scenario("heartbeats", "Kubernetes nodes' heartbeats", "heartbeats", full_flags=("--nodes", 200_000)),
        Scenario(
            "heartbeats-same-load",
            "Kubernetes nodes' heartbeats arriving at the most that etcd carries",
            "heartbeats",
            share_of="heartbeats",
            share=STEADY_SHARE,
            rounds=1,
        ),
        Scenario("churn", "Kubernetes pods' churn, ten watches", "churn", goals=(Goal("rate", at_least=8),)),
        Scenario(
            "churn-compacted",
            "Kubernetes pods' churn, the history compacted all the while",
            "churn",
            (*DEEP, "--watchers", 0, "--compact-interval", 0.5),
            # As an apiserver does it.
            full_flags=("--compact-interval", 300),
            full_seconds=660,
            rounds=1,
        ),
        Scenario(
            "list-storm",
            "Four clients list all keys beside pods' churn at half of what etcd carries",
            "list-storm",
            share_of="churn",
            share=0.5,
            rounds=1,
        ),
    ),
    curves=(
        Curve(
            "heartbeats",
            "Kubernetes nodes' heartbeats arriving on a schedule",
            "heartbeats",
            "heartbeats",
            shares=(0.5, 0.9),
        ),
    ),
)

CLUSTER_GOALS = (Goal("rate", at_least=6), Goal("server_cpu_us", at_most=1 / 8))
CLUSTER = Stage(
    "cluster",
    "Three members on one machine",
    keys=50_000,
    value_bytes=VALUE_BYTES,
    quick_keys=2_000,
    members=3,
    scenarios=(
        Scenario("cluster-put", "Three members: durable puts, 512 in flight", "put", goals=CLUSTER_GOALS),
        Scenario("cluster-get", "Three members: linearizable gets, 512 in flight", "get", goals=CLUSTER_GOALS),
        Scenario(
            "cluster-get-follower", "Three members: linearizable gets at a follower, 512 in flight", "get", follower=True
        ),
        Scenario(
            "cluster-put-1",
            "Three members: durable puts, one at a time",
            "put",
            SHALLOW,
            goals=(Goal("p50_us", at_most=1),),
        ),
    ),
)
# What the kills of the leader of each cluster are asked for by.
FAILOVER_NAME = "failover"
FAILOVER = "no writes after the leader's kill -9"
FAILOVER_GOALS = (
    Goal("failover_seconds", at_most=1, title=FAILOVER),
    Goal("failover_longest_seconds", at_most=1, title=FAILOVER),
)

STAGES = (POINTS, LISTS, WATCHES, CLUSTER)

# Of the stage that measures the store.
LOADED_GOALS = (
    Goal("rss_bytes", at_most=1 / 2, title="memory with the keys loaded"),
    Goal("restart_seconds", at_most=1 / 5, title="restart with the keys loaded"),
)
VERSIONS = 5
VERSIONS_GOAL = Goal("rss_bytes", at_most=1 / 3, title="memory with five versions of each key")
# One client, one at a time: what may come on top of the same write issued alone on the same disk.
ALONE_EXTRA_US = 60

BASIC = (PUT, GET)
SWEEPS = (
    Sweep("keys", "Keys", "keys", (1_000, 10_000, 100_000, 1_000_000, 10_000_000), "keys", BASIC),
    Sweep(
        "value",
        "Size of a value",
        "bytes",
        (64, 256, 1024, 4096, 16_000, 65_536, 262_144, 1_048_576),
        "value_bytes",
        BASIC,
        {"keys": 2_000},
    ),
    Sweep(
        "clients",
        "Connections, one call in flight on each",
        "connections",
        (1, 10, 100, 1_000, 10_000),
        "--connections",
        BASIC,
        # Etcd takes 5 000 writes that wait.
        {"--streams": 1, "--refusals": 1},
    ),
    Sweep(
        "watchers",
        "Watchers of one key",
        "watchers",
        (1, 10, 100, 1_000, 10_000, 100_000),
        "watchers",
        (Scenario("watch", "One write to all watchers", "watch", (), usual_flags=False),),
        {"keys": 1_000},
    ),
    Sweep("history", "Versions of each key", "versions", (1, 5, 20), "versions", BASIC, {"keys": 100_000}),
    # The load has a core of its own as long as there is one.
    Sweep("cores", "Cores of the server", "cores", (1, 2, 4, 8, 16, 32), "cores", BASIC),
)
SWEEP_KEYS = 100_000

# What only some kinds of work have, and is shown for them beside the rest.
OF_SOME = (
    "extra_memory_bytes",
    "event_rate",
    "lists_byte_rate",
    "lists_p99_us",
    "puts_p99_us",
    "compactions_p99_us",
    "drained_us",
)
# For people: what a figure is called, its unit, and whether more is better.
METRICS = {
    "rate": ("calls per second", "/s", True),
    "event_rate": ("events per second", "/s", True),
    "byte_rate": ("bytes per second", "B/s", True),
    "server_cpu_us": ("server CPU per call", "µs", False),
    "p50_us": ("p50", "µs", False),
    "p90_us": ("p90", "µs", False),
    "p99_us": ("p99", "µs", False),
    "p999_us": ("p99.9", "µs", False),
    "max_us": ("longest", "µs", False),
    "client_cpu_us": ("load's CPU per call", "µs", False),
    "lists_byte_rate": ("bytes per second of the lists beside", "B/s", True),
    "lists_p99_us": ("p99 of the lists beside", "µs", False),
    "puts_p99_us": ("p99 of the puts beside", "µs", False),
    "compactions_p99_us": ("p99 of the compactions beside", "µs", False),
    "drained_us": ("until the last lease had expired", "µs", False),
    "extra_memory_bytes": ("peak memory on top", "B", False),
    "rss_bytes": ("resident memory", "B", False),
    "file_bytes": ("data directory", "B", False),
    "fill_rate": ("keys loaded per second", "/s", True),
    "restart_seconds": ("restart", "s", False),
    "restart_after_kill_seconds": ("restart after kill -9", "s", False),
    "failover_seconds": ("median of the kills", "s", False),
    "failover_longest_seconds": ("longest of the kills", "s", False),
}
