"""What the study of Driple fits: rows by setting, who is left out, errors, one fit at a time, and forecasts of the same rows."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import foretell
from foretell.methods.driple.method import (
    TUNED,
    Driple,
    DripleSettings,
    Epoch,
    Fitted,
    setting_of,
)
from foretell.methods.driple.network import GROUPS_OF_PARAMETERS, Network, Shape
from foretell.methods.protocol import STEP_TIME, Example
from foretell_bench.sources.emulated import (
    H200_TARGETS,
    HOST_TARGETS,
    SHARED_TARGETS,
    h200_resources,
    host_jobs,
    shared_gpu_jobs,
)

FLOOR: Final = 0.01  # of the largest: what is smaller counts as this
SCRATCH: Final = "from scratch"
WAYS: Final = {"transfer, frozen": TUNED, "transfer, all tuned": GROUPS_OF_PARAMETERS}
SHARES: Final = {"all": 1, "half": 2, "quarter": 4}  # every so-manieth training architecture
SEEDS: Final = 5
Values = Mapping[str, float]
Rows = dict[str, list[Example]]  # by setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    source: str  # the setting that networks are tailored from
    targets: tuple[str, ...]
    read: Callable[[], Sequence[Example]]


def data_of(name: str, stores: Path) -> Data:
    """Jobs of hosts with a share of a core, or of workers that share a GPU."""
    if name == "box":
        return Data(
            source="dp=2 on 2xcpu@1000Mbit/s", targets=(STEP_TIME, *HOST_TARGETS),
            read=lambda: host_jobs(stores / name).items,
        )  # fmt: skip
    return Data(
        source="dp=2 on 2xh200@2000Mbit/s", targets=(STEP_TIME, *SHARED_TARGETS),
        read=partial(shared_gpu_jobs, stores / name),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    setting: str
    seed: int
    share: str
    way: str


# Rows.


def families(architectures: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(architectures)):
        found[name.split("-")[0]].append(name)
    return found


def unseen_architectures(architectures: Sequence[str], seed: int = 0) -> set[str]:
    """One of each family, another for each seed; chosen by place in the alphabet, before anything was fitted."""
    return {names[(1 + seed) % len(names)] for names in families(architectures).values()}


def by_setting(examples: Sequence[Example]) -> Rows:
    """One run of each architecture and batch: other parts of the data have the same steps."""
    found: dict[str, dict[tuple[str, float], Example]] = defaultdict(dict)
    for e in examples:
        found[setting_of(e.query)].setdefault((e.query.architecture, e.query.batch), e)
    return {setting: list(own.values()) for setting, own in found.items()}


def parted(rows: Sequence[Example], out: set[str]) -> tuple[list[Example], list[Example]]:
    return [e for e in rows if e.query.architecture not in out], [e for e in rows if e.query.architecture in out]


def split(rows: Sequence[Example], seed: int, share: str = "all") -> tuple[list[Example], list[Example]]:
    """What a seed learns from, and rows of the architectures it predicts in the end."""
    train, test = parted(rows, unseen_architectures([e.query.architecture for e in rows], seed))
    names = sorted({e.query.architecture for e in train})
    return parted(train, set(names) - set(names[:: SHARES[share]]))[0], test


# Errors.


def scales(train: Sequence[Example], targets: Sequence[str]) -> dict[str, float]:
    """The largest of each target that most rows have: where counters were read too late there is the step's time alone."""
    enough = [t for t in targets if sum(t in e.measured for e in train) >= len(train) / 2]
    return {t: max(e.measured[t] for e in train if t in e.measured) for t in enough}


def errors(
    predicted: Sequence[Values], test: Sequence[Example], scale: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Of each target: relative, where there is something to be relative to, and the logarithm of the factor."""
    found = {}
    for target, largest in scale.items():
        pairs = [(v[target], e.measured[target]) for v, e in zip(predicted, test, strict=True)
                 if target in v and target in e.measured]  # fmt: skip
        relative = [abs(predicted / was - 1) for predicted, was in pairs if was > FLOOR * largest]
        if relative:
            least = FLOOR * largest
            off = fmean(abs(math.log(max(predicted, least) / max(was, least))) for predicted, was in pairs)
            found[target] = {"off": off, "relative": fmean(relative), "median": median(relative), "rows": len(relative)}
    return found


def error_of(by_target: Mapping[str, Mapping[str, float]]) -> float:
    """One number: the mean over targets of |ln(predicted ÷ measured)|."""
    return fmean(by["off"] for by in by_target.values())


# Fitting.


def fit_one(
    task: Fit, rows: Rows, data: Data, chosen: DripleSettings, base: Fitted | None
) -> tuple[dict[str, Any], Fitted]:
    """Validation's error as epochs and seconds go by; errors on the rows left out when it is done, and not before."""
    train, test = split(rows[task.setting], task.seed, task.share)
    made, curve = Driple(replace(chosen, seed=task.seed)), list[list[float]]()
    clock = time.monotonic if chosen.trains_on != "cpu" else time.process_time
    begin = clock()

    def watch(epoch: Epoch) -> None:
        assert epoch.validated is not None, "nothing is left out to validate on"
        curve.append([epoch.number, round(clock() - begin, 3), epoch.validated])

    if task.way == SCRATCH:
        made.fit(train, watch)
    else:
        assert base is not None
        made.fitted_ = {data.source: base}
        made.transfer(train, data.source, WAYS[task.way], watch)
    whole = scales(split(rows[task.setting], task.seed)[0], data.targets)
    found = errors([p.values for p in made.predict([e.query for e in test])], test, whole)
    return {"rows": len(train), "test": len(test), "curve": curve, "seconds": curve[-1][1],
            "error": round(error_of(found), 4), "errors": found}, made.fitted_[task.setting]  # fmt: skip


def save(fitted: Fitted, path: Path) -> None:
    """The network of a setting, with all that belongs to it."""
    from safetensors.torch import save_file

    about = {name: getattr(fitted, name) for name in ("targets", "smallest", "largest", "mean", "deviation")}
    about |= {"shape": asdict(fitted.network.shape), "frequencies": dict(fitted.frequencies)}
    weights = {name: weight.contiguous() for name, weight in fitted.network.state_dict().items()}
    save_file(weights, path, metadata={"fitted": json.dumps(about)})


def load(path: Path) -> Fitted:
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["fitted"])
    network = Network(Shape(**about.pop("shape")), len(about["targets"]))
    network.load_state_dict(load_file(path))
    frequencies = about.pop("frequencies")
    return Fitted(network=network, frequencies=frequencies, **{name: tuple(values) for name, values in about.items()})


def warm(rows: Sequence[Example], chosen: DripleSettings) -> None:
    """Graphs are gathered into groups once, and that time is nobody's."""
    made = Driple(chosen)
    for e in rows:
        made._skeleton(e.query.graph)


# What is tried, on the source. The first is how the release trains, at a size that a processor bears.
SMALL: Final = DripleSettings(groups=24, rounds=4, readings=4, epochs=160, patience=160, batch=16)
TRIED: Final = {
    "as released, small": SMALL,
    "logarithms": replace(SMALL, labels="log"),
    "logarithms, a third of the rate": replace(SMALL, labels="log", rate=1e-3),
    "logarithms, groups of 8": replace(SMALL, labels="log", batch=8),
    "logarithms, twice the rounds and groups": replace(SMALL, labels="log", groups=48, rounds=8, readings=8),
    "logarithms, GIN": replace(SMALL, labels="log", kind="gin"),
}
LENGTHS: Final = (20, 40, 80, 160)  # epochs


def tune(rows: Sequence[Example], targets: Sequence[str], say: Callable[[str], None]) -> dict[str, Any]:
    """Every variant on the source, twice, validated on one of each family that no seed leaves out, where there is one."""
    names = [e.query.architecture for e in rows]
    out = set().union(*(unseen_architectures(names, seed) for seed in range(SEEDS)))
    validating = {own[0] for own in families([n for n in names if n not in out]).values()}
    train, test = parted(rows, validating)
    scale = scales(train, targets)
    tried: dict[str, Any] = {}
    for name, chosen in TRIED.items():
        begin = time.process_time()
        warm(rows, chosen)
        at: dict[int, list[float]] = defaultdict(list)
        for seed, length in product((0, 1), LENGTHS):
            made = Driple(replace(chosen, seed=seed, epochs=length, validated=0.0)).fit(train)
            at[length].append(error_of(errors([p.values for p in made.predict([e.query for e in test])], test, scale)))
        tried[name] = {
            "errors": {str(e): fmean(those) for e, those in at.items()},
            "seconds": time.process_time() - begin,
        }
        say(f"tried {name}: " + ", ".join(f"{fmean(those):.3f} after {e}" for e, those in at.items()))
    name, epochs = min(((n, e) for n in tried for e in tried[n]["errors"]), key=lambda k: tried[k[0]]["errors"][k[1]])
    return {"tried": tried, "chosen": name, "epochs": int(epochs)}


# Others on the same rows.

NO_HOST: Final = 1e-6  # a factor: a processor that computes issues no kernels
FACTORS: Final = tuple(2 ** (i / 4) for i in range(-4, 21))  # of a device and a host, half to 32 times as slow


def others(rows: Sequence[Example], seed: int, data: Data) -> dict[str, Any]:
    """Errors of the median of training and of Foretell, on what a seed leaves out."""
    train, test = split(rows, seed)
    scale = scales(train, data.targets)
    middle = {t: median(e.measured[t] for e in train if t in e.measured) for t in scale}
    return {"median of training": errors([middle] * len(test), test, scale),
            "Foretell": errors(foretell_predicts(train, test), test, scale)}  # fmt: skip


def foretell_predicts(train: Sequence[Example], test: Sequence[Example]) -> list[Values]:
    """Forecasts with a profile from the training rows: how much slower than listed a device is, and its host."""
    on_cpus = train[0].query.cluster.nodes[0].device.name == "cpu"
    profile = cpu_profile(train) if on_cpus else gpu_profile(train)
    answers: list[Values] = []
    for e in test:
        assert e.query.graph is not None
        found = foretell.forecast(e.query.graph, e.query.cluster, e.query.plan, model="roofline", profile=profile)
        uses = {
            "network_tx": found.resources.network_tx,
            "network_rx": found.resources.network_rx,
            "memory_bandwidth": found.resources.memory_bandwidth,
            "compute" if on_cpus else "device": found.resources.device,
        }
        values = {STEP_TIME: found.step_time.seconds}
        for name, use in uses.items():
            values |= {f"{name}_{what}": getattr(use, what) for what in ("active_seconds", "idle_seconds", "peak")}
        answers.append(values)
    return answers


def cpu_profile(train: Sequence[Example]) -> foretell.Profile:
    """One number, far beyond what `fit_profile` looks for: an emulated host is a share of a few cores."""

    def slowness(e: Example) -> float:
        assert e.query.graph is not None
        found = foretell.forecast(e.query.graph, e.query.cluster, e.query.plan, model="roofline")
        computing = e.measured[STEP_TIME] - found.resources.network_tx.active_seconds
        return max(0.1 * e.measured[STEP_TIME], computing) / found.device_time.seconds

    return foretell.Profile(name="emulated hosts", device=median(slowness(e) for e in train), host=NO_HOST)


def gpu_profile(train: Sequence[Example]) -> foretell.Profile:
    """Two numbers: workers share the device, and the host that issues kernels is none that is listed.

    They are looked for where the step is the longer of device and host, and then the network.
    """
    parts = []
    for e in train[::4]:
        assert e.query.graph is not None
        found = foretell.forecast(e.query.graph, e.query.cluster, e.query.plan, model="roofline")
        network = found.resources.network_tx.active_seconds
        parts.append((found.device_time.seconds, found.host_time.seconds, network, e.measured[STEP_TIME]))

    def error(factors: tuple[float, float]) -> float:
        device, host = factors
        return fmean(abs(math.log((max(device * d, host * h) + n) / was)) for d, h, n, was in parts)

    device, host = min(product(FACTORS, FACTORS), key=error)
    return foretell.Profile(name="workers that share a device", device=device, host=host)


def h200(store: Path, rows: int, chosen: DripleSettings) -> dict[str, Any]:
    """Device and memory targets of one H200; every fourth architecture is left out."""
    found = h200_resources(store, most=2 * rows)
    examples = [e for e in found if e.query.graph and len(e.query.graph.ops) < 4000][:rows]
    names = sorted({e.query.architecture for e in examples})
    train, test = parted(examples, set(names[::4]))
    scale = scales(train, (STEP_TIME, *H200_TARGETS))
    middle = {t: median(e.measured[t] for e in train if t in e.measured) for t in scale}
    begin = time.process_time()
    method = Driple(chosen).fit(train)
    seconds = time.process_time() - begin
    predicted = [p.values for p in method.predict([e.query for e in test])]
    return {
        "train": len(train), "test": len(test), "architectures": len(names), "seconds": seconds,
        "errors": {"median of training": errors([middle] * len(test), test, scale), "after Driple": errors(predicted, test, scale)},
    }  # fmt: skip
