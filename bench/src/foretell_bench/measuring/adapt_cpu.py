"""This machine's CPU as a new device: adapted under a budget, then models of other families measured and forecast.

Keep the machine quiet. The store in FOLDER keeps all measurements, so that a run can go on; the device, its host and the
profile are in FOLDER/catalog and FOLDER/this-cpu.toml.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import foretell
from foretell.campaign.driver import run
from foretell.campaign.executor import LocalExecutor
from foretell.campaign.jobs import Campaign
from foretell.learn.adapt.fit import fit_profile
from foretell.learn.adapt.local import measure_here
from foretell.learn.adapt.pool import usual_points
from foretell.measure.record import Point
from foretell.measure.this_cpu import describe_this_cpu
from foretell.profile import Purpose
from foretell.store.store import Store

NAME: Final = "this-cpu"
_IMAGE: Final = {"batch": "2", "image_size": "128", "precision": "fp32"}
_TEXT: Final = {"batch": "2", "seq": "64", "precision": "fp32"}
# None of these families is among the steps that adapt chooses from. How ops are learned was shaped with the first ten in view;
# the second ten were measured once, after that.
UNSEEN: Final = (
    Point(source="torchvision/googlenet", settings={**_IMAGE, "optimizer": "sgd-momentum"}),
    Point(source="torchvision/regnet_y_400mf", settings={**_IMAGE, "optimizer": "adamw"}),
    Point(source="torchvision/resnext50_32x4d", settings={**_IMAGE, "optimizer": "none"}),
    Point(source="torchvision/mnasnet1_0", settings={**_IMAGE, "optimizer": "none"}),
    Point(source="timm/ghostnet_100", settings={**_IMAGE, "optimizer": "adamw"}),
    Point(source="timm/poolformer_s12", settings={**_IMAGE, "optimizer": "adamw"}),
    Point(source="timm/res2net50_26w_4s", settings={**_IMAGE, "optimizer": "none"}),
    Point(source="timm/hrnet_w18_small", settings={**_IMAGE, "optimizer": "none"}),
    Point(source="hf/gpt2", settings={**_TEXT, "optimizer": "none"}),
    Point(source="hf/bert-base", settings={**_TEXT, "optimizer": "adamw"}),
)
BLIND: Final = (
    Point(source="timm/hgnetv2_b0", settings={**_IMAGE, "optimizer": "none"}),
    Point(source="timm/inception_next_atto", settings={**_IMAGE, "optimizer": "adamw"}),
    Point(source="timm/lcnet_100", settings={**_IMAGE, "optimizer": "none"}),
    Point(source="timm/gernet_s", settings={**_IMAGE, "optimizer": "adamw"}),
    Point(source="timm/cs3darknet_s", settings={**_IMAGE, "optimizer": "none"}),
    Point(source="timm/ese_vovnet19b_slim", settings={**_IMAGE, "optimizer": "sgd-momentum"}),
    Point(source="timm/fastvit_t8", settings={**_IMAGE, "optimizer": "none"}),
    Point(source="timm/eca_resnet33ts", settings={**_IMAGE, "optimizer": "adamw"}),
    Point(source="hf/pythia-160m", settings={**_TEXT, "optimizer": "none"}),
    Point(source="hf/smollm2-135m", settings={**_TEXT, "optimizer": "adamw"}),
)


def adapted(folder: Path, budget: float) -> foretell.Profile:
    began = time.monotonic()
    if not (folder / "catalog" / "devices" / f"{NAME}.toml").exists():
        describe_this_cpu(NAME)
    left = budget - (time.monotonic() - began)
    device = foretell.device(NAME)
    steps = measure_here(
        usual_points(device), NAME, Store(folder / "store"), place="cpu", runs=1000, budget=0.9 * left, say=print
    )
    profile = fit_profile(steps, name=NAME, purpose=Purpose(device=NAME), sources=["measured here"])
    profile.save(folder / f"{NAME}.toml")
    card = profile.card
    print(
        f"\nAdapted in {time.monotonic() - began:.0f} s on {card.rows} steps ({card.form}): on steps left out "
        f"{100 * (card.error_before or 0):.1f} % before, {100 * (card.error_after or 0):.1f} % after.\n"
    )
    return profile


def run_all(folder: Path, budget: float) -> None:
    folder = folder.resolve()
    (folder / "catalog").mkdir(parents=True, exist_ok=True)
    os.environ["FORETELL_CATALOG"] = str(folder / "catalog")
    profile = adapted(folder, budget)
    compare(UNSEEN, profile, Store(folder / "unseen"))
    compare(BLIND, profile, Store(folder / "unseen"))


def compare(points: Sequence[Point], profile: foretell.Profile, store: Store) -> None:
    """Measure these steps, and print them with their forecasts."""
    run(
        Campaign.of(points),
        store,
        LocalExecutor(["cpu"]),
        progress=lambda now: print(f"[{now.done}/{now.total}] {now.event}"),
    )
    measured = {step.point: step.step_seconds for step in store.steps("outcome = 'ok'") if step.step_seconds}
    errors, inside = [], []
    print(f"\n{'model':44} {'measured':>9} {'before':>8} {'adapted':>8}  interval")
    for point in points:
        if (seconds := measured.get(point.key)) is None:
            print(f"{point!s:44} not measured")
            continue
        before = foretell.forecast(point.source, NAME, settings=point.settings).step_time.seconds
        after = foretell.forecast(point.source, NAME, settings=point.settings, profile=profile).step_time
        low, high = after.low or 0.0, after.high or 0.0
        errors.append((abs(before / seconds - 1), abs(after.seconds / seconds - 1)))
        inside.append(low <= seconds <= high)
        print(
            f"{point.source + ' ' + point.settings['optimizer']:44} {seconds * 1e3:7.1f}ms {100 * (before / seconds - 1):+7.0f}% "
            f"{100 * (after.seconds / seconds - 1):+7.1f}%  {low * 1e3:.1f}–{high * 1e3:.1f} ms"
        )
    if errors:
        means = [100 * sum(column) / len(errors) for column in zip(*errors, strict=True)]
        print(
            f"\nmean error {means[0]:.1f} % before, {means[1]:.1f} % adapted; {sum(inside)} of {len(errors)} within their interval\n"
        )
