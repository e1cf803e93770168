"""How far learned device times are off on architecture families that were not seen, on the H200 dataset.

    python benchmarks/h200/accuracy.py [--products GEMM.csv.gz] [--folds N]

Each family in turn is left out of the fit (about 20 s a fold), and the device time of its steps is foretold, op by op, and
compared with what was measured. --products adds public measurements of matrix products, as the shipped model has them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]

import numpy as np
from points import FAMILY

from foretell.learn import dataset, evaluate
from foretell.learn.fit import public_products
from foretell.measure.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path(__file__).parents[1] / "data" / "h200")
    parser.add_argument("--products", type=Path)
    parser.add_argument("--folds", type=int, help="leave out several families at a time, which is quicker and harder")
    options = parser.parse_args()
    measured = dataset.load(Store(options.store))
    beside = list(public_products(options.products, "h200", print).values()) if options.products else []
    family = {i: FAMILY[s.source] for i, s in enumerate(measured.steps) if s.kind == "step"}
    held = evaluate.leave_groups_out(measured, family, beside=beside, folds=options.folds, progress=print)
    ops = measured.ops
    least = np.array([d.roofline for d in ops.descriptions]) * ops.count
    roofline = np.array([least[ops.step == s].sum() for s in held.steps])
    print(f"{'roofline':20}{evaluate.Errors.of(roofline, held.measured)}")
    print(f"{'learned':20}{held.errors()}")
    for name in sorted(set(held.groups)):
        print(f"  {name:18}{held.errors(name)}")


if __name__ == "__main__":
    main()
