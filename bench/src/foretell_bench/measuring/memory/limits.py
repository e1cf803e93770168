"""Compares the largest batch that fits, as forecast, with the one found by bisection on the device.

For every workload of data/h200_memory_limits.jsonl: `fit_batch` against the measured limit, and the verdict on every
batch that was tried, right or wrong, with how far the forecast total lies from the capacity. A workload whose search on
the device ended before it was full is left out.
"""

from __future__ import annotations

import json
import statistics
from typing import Any, Final

from foretell import capture_graph, fit_batch, forecast
from foretell.errors import InputError
from foretell.graph.rescale import extend
from foretell_bench.checkout import DATA
from foretell_bench.measuring.memory.collect import lines

SIZES: Final = (8, 16)
NEAR: Final = 0.05  # of capacity; closer than this a verdict may be either


def evaluate(row: dict[str, Any]) -> dict[str, Any]:
    source, settings = row["source"], row["settings"]
    found = fit_batch(source, "h200", settings=settings)
    first, second = (capture_graph(source, {**settings, "batch": str(size)}) for size in SIZES)
    verdicts = []
    for tried in row["tries"]:
        memory = forecast(extend(first, second, sizes=SIZES, to=tried["batch"]), "h200").memory
        verdicts.append({
            "batch": tried["batch"], "ran": tried["ok"], "fits": memory.fits, "distance": memory.total / memory.capacity - 1,
        })  # fmt: skip
    return {
        "key": row["key"],
        "measured": row["limit"],
        "forecast": found.batch,
        "error": found.batch / row["limit"] - 1,
        "verdicts": verdicts,
    }


def run(only: str = "", as_json: bool = False) -> None:
    results = []
    for row in lines(DATA / "h200_memory_limits.jsonl"):
        if all(tried["ok"] for tried in row["tries"]):
            continue  # the device was not full when the search on it ended
        if only in row["key"]:
            results.append(evaluate(row))
            if not as_json:
                r = results[-1]
                print(
                    f"{r['key'][:64]:64} measured {r['measured']:5d}  forecast {r['forecast']:5d}  {r['error']:+.1%}",
                    flush=True,
                )
    if not results:
        raise InputError(f"no measured limit has {only!r} in its key. Give other text, or leave out --only.")
    tried = [v for r in results for v in r["verdicts"]]
    clear = [v for v in tried if abs(v["distance"]) > NEAR]
    if as_json:
        print(json.dumps(results, indent=2))
        return
    for result in results:
        for v in result["verdicts"]:
            if v in clear and v["ran"] != v["fits"]:
                print(f"wrong: {result['key']} at batch {v['batch']}, total {v['distance']:+.1%} of capacity")
    errors = [abs(r["error"]) for r in results]
    print(
        f"\n{len(results)} workloads: largest batch off by {statistics.mean(errors):.1%} on average, {max(errors):.1%} at worst"
    )
    print(f"{sum(not v['ran'] for v in tried)} of {len(tried)} tries ran out of memory; verdicts right: "
          f"{sum(v['ran'] == v['fits'] for v in tried)} of {len(tried)}, and {sum(v['ran'] == v['fits'] for v in clear)} of {len(clear)} "
          f"further than {NEAR:.0%} from capacity")  # fmt: skip
