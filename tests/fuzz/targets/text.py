"""What people write: clusters, plans and quantities, put together from pieces that mean something."""

from __future__ import annotations

import random

from foretell import Cluster, Plan
from foretell.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds
from tests.fuzz.answers import check_finite
from tests.fuzz.harness import Nonsense

WEIGHT = 2
CLUSTERS = (
    "8", "x", "h100-sxm", "h200", "t4", "aws:p5.48xlarge", "@", "ib-400g", "pcie-4", ",", "/", "4", "rail-optimized", "+", "×", " ",
    "0", "-1", "1e9", "..", ":", "999999999999", "inf", "nan", "🦆", "\x1b[31m", "\0", "a" * 300, "4xt4+" * 50, "/9" * 10, "8xh200@",
    "torus", "1.5", "9" * 200,
)  # fmt: skip
PLANS = (
    "dp", "tp", "pp", "cp", "ep", "zero", "=", ",", "2", "4", "0", "-1", "1e9", "full", "checkpointing", "schedule", "1f1b",
    "zero-bubble", "servers", "true", "stages", "1+2", "bucket_bytes", "inf", "nan", "grad_accumulation", "9" * 30, "🦆", " ", "\0",
    "hybrid_shard", "sequence_parallel", "0.5", "virtual_stages", "overlap", "asynchronous", "dp=2", "tp=2", "pp=2,",
)  # fmt: skip
QUANTITIES = (
    "1",
    "0",
    ".",
    "_",
    "e",
    "9" * 50,
    "-",
    "+",
    " ",
    "GB",
    "GiB",
    "TB/s",
    "TFLOP/s",
    "us",
    "h",
    "inf",
    "nan",
    "1e308",
    "µs",
    "🦆",
)


def case(rng: random.Random) -> None:
    kind = rng.randrange(3)
    pieces = (CLUSTERS, PLANS, QUANTITIES)[kind]
    text = "".join(rng.choice(pieces) for _ in range(rng.choice((1, 2, 3, 4, 6, 9))))
    if kind == 0:
        cluster = Cluster.parse(text)
        if cluster.devices < 1 or (cluster.between_bandwidth is not None and not cluster.between_bandwidth > 0):
            raise Nonsense(f"{text!r} is {cluster.devices} devices, {cluster.between_bandwidth} between nodes")
        check_finite([cluster.between_bandwidth, cluster.dollars_per_hour])
    elif kind == 1:
        plan = Plan.parse(text)
        if plan.devices < 1 or Plan.parse(str(plan)) != plan:
            raise Nonsense(f"{text!r} is {plan}")
    else:
        check_finite(
            [parse(text) for parse in rng.sample((parse_bytes, parse_bandwidth, parse_flops, parse_seconds), 1)]
        )
