"""Compares the largest batch that fits, as forecast, with the one found by bisection on the device.

    python bench/scripts/memory/limits.py [--only TEXT] [--json]

For every workload of data/h200_memory_limits.jsonl: `fit_batch` against the measured limit, and the verdict on every
batch that was tried, right or wrong, with how far the forecast total lies from the capacity. A workload whose search on
the device ended before it was full is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "src")]

from configurations import located

from foretell.capture import capture
from foretell.forecasting.fit_batch import fit_batch
from foretell.forecasting.forecast import forecast
from foretell.graph.rescale import extend

LIMITS = Path(__file__).parents[2] / "data" / "h200_memory_limits.jsonl"
SIZES = (8, 16)
NEAR = 0.05  # of capacity; closer than this a verdict may be either


def evaluate(row: dict[str, Any]) -> dict[str, Any]:
    source, settings = located(row["source"]), row["settings"]
    found = fit_batch(source, "h200", settings=settings)
    first, second = (capture(source, {**settings, "batch": str(size)}) for size in SIZES)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [json.loads(line) for line in LIMITS.read_text().splitlines()]
    results = []
    for row in rows:
        if all(tried["ok"] for tried in row["tries"]):
            continue  # the device was not full when the search on it ended
        if options.only in row["key"]:
            results.append(evaluate(row))
            if not options.json:
                r = results[-1]
                print(
                    f"{r['key'][:64]:64} measured {r['measured']:5d}  forecast {r['forecast']:5d}  {r['error']:+.1%}",
                    flush=True,
                )
    tried = [v for r in results for v in r["verdicts"]]
    clear = [v for v in tried if abs(v["distance"]) > NEAR]
    if options.json:
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


if __name__ == "__main__":
    main()
