"""The error of forecasts, learned from measured steps; where no measured step is near, no correction.

log(measured ÷ forecast) is a Gaussian process: an offset of all, one of each network, each device and each cluster, and
a smooth part over numbers that describe a step. How much each part explains, and a factor for each part of a forecast, come
from the examples (marginal likelihood, with weak priors). Far from all examples only the offset and the factors are left.

Factors are mostly near 1, but a host with a hundredth of a processor has one of a hundred: their prior has long tails, and
the search begins at the factors that explain most by themselves, or else the smooth part learns by heart what they explain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from foretell.cost.model import DEFAULT, CostModel, load_model
from foretell.cost.roofline import on_tf32, peak_name
from foretell.errors import InputError
from foretell.forecasting.forecast import forecast
from foretell.graph import Graph
from foretell.hardware import Cluster, Device
from foretell.plans import Plan
from foretell.profile import Profile
from foretell.units import Bytes, Seconds

# Of logarithms: what is usual before anything was seen, and how unsure that is.
_PART: Final = (math.log(0.1), 1.0)  # a part of the kernel explains a tenth
_NOISE: Final = (math.log(0.1), 1.0)
_LENGTH: Final = (math.log(2.0), 1.0)  # steps that differ sevenfold in one description are strangers
_FACTOR: Final = (0.0, 0.7)
_FAR: Final = 6.0  # times as unsure: beyond it no search goes, so that every matrix has a root
_FAR_FACTOR: Final = math.log(1e4)  # the same of factors, which are seldom far
_FACTORS: Final = 6  # as many as `Parts` has
_BEGIN: Final = (1.0, 100.0)  # factors of the device and the host that a search is begun at
_SPEED: Final = 2.0**10  # the most that the device and the host are simulated slower, or faster, than forecast
_TINY: Final = 1e-6  # variance that keeps equal rows from making a matrix singular
_STRANGE: Final = 3.0  # standard deviations from what all other rows say: a measurement not to be believed
_MAX_ROWS: Final = 400  # rows that hyper-parameters are learned on, as each try costs their cube
_TRIES: Final = 60
_SIDE: Final = NormalDist().inv_cdf(0.95)  # of a 90 % interval


_SOFT: Final = 6.0  # device and host run side by side: nearly their maximum
_NO_HOST: Final = Profile(name="no host", host=1e-3)  # never waited for, so that communication can be told apart


class Speed(NamedTuple):
    """Factors of what device and host take, applied before a step is simulated: more hides behind slow compute."""

    device: float = 1.0
    host: float = 1.0


AS_FORECAST: Final = Speed()


class Parts(NamedTuple):
    """A forecast in the parts that have a factor each; of what has no parts the first is all."""

    device: float  # of ops that compute, by the roofline
    moving: float = 0.0  # the device's, of ops that move data
    host: float = 0.0  # beside the device
    serial: float = 0.0  # the host's, where it runs the ops itself: a processor
    waiting: float = 0.0  # for communication that does not hide behind compute
    bubble: float = 0.0

    @property
    def seconds(self) -> Seconds:
        """A pipeline runs empty in proportion to what fills it, be that the device or the host."""
        busy = self.device + self.moving + self.serial + self.waiting
        paced = float((busy**_SOFT + self.host**_SOFT) ** (1 / _SOFT))
        return paced * (1 + self.bubble / busy)


def forecast_parts(
    graph: Graph, cluster: Cluster, plan: Plan, model: str | CostModel = DEFAULT, speed: Speed = AS_FORECAST
) -> tuple[Parts, Bytes]:
    """A forecast's time in parts, and the memory it allocates."""
    profile = replace(_NO_HOST, device=speed.device, host=speed.host * _NO_HOST.host)
    found = forecast(graph, cluster, plan, model=model, profile=profile)
    device, host, bubble = found.device_time.seconds, found.host_time.seconds / _NO_HOST.host, found.bubble.seconds
    alone = cluster.nodes[0].device.kind == "cpu"
    moving = device * _moving(graph, cluster.nodes[0].device, load_model(model) if isinstance(model, str) else model)
    parts = Parts(
        device=device - moving, moving=moving, host=0.0 if alone else host, serial=host if alone else 0.0, bubble=bubble,
        waiting=max(found.step_time.seconds - device - bubble, 0.0),
    )  # fmt: skip
    return parts, found.memory.allocated


def _moving(graph: Graph, device: Device, model: CostModel) -> float:
    """The share of a step's device time in ops that are bound by memory: on a strange device they may fare otherwise."""
    priced = model.price(graph, device)
    moving = all_of = 0.0
    for call, times, price in zip(priced.calls.distinct, priced.calls.times, priced.of_calls, strict=True):
        peak = device.peak(peak_name(call.signature, tf32=on_tf32(call.signature.name, graph.precision, device)))
        all_of += times * price.seconds
        moving += times * price.seconds * (price.work.flops / peak < price.work.traffic / device.bandwidth)
    return moving / all_of if all_of else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A forecast, and where and of what it was made."""

    parts: Parts
    names: tuple[str, ...]  # of its network, device, cluster: an offset each
    values: tuple[float, ...]  # mostly logarithms


class Range(NamedTuple):
    """A value and its 90 % interval."""

    low: float
    value: float
    high: float


class Residuals:
    def __init__(self, *, factors: bool = True) -> None:
        self.factors = factors  # whether the parts of a forecast have a factor each

    def fit(self, cases: Sequence[Case], measured: Sequence[float]) -> Self:
        if not cases:
            raise InputError("the error of forecasts is learned from measured steps, and there are none.")
        self.table_ = _Table.of(cases)
        wanted = torch.tensor(np.log(measured))
        doubt = torch.zeros(len(cases), dtype=torch.float64)
        some = np.unique(np.linspace(0, len(cases) - 1, min(len(cases), _MAX_ROWS)).astype(int))
        prior = self._prior()
        self.learned_ = self._begin(prior[0], wanted)
        for _ in range(2):  # the second time without the rows that the others contradict
            self.learned_ = _most_likely(self.learned_, prior, self.table_.at(some), wanted[some], doubt[some])
            self.root_, self.weights_ = _solved(self.learned_, self.table_, wanted, doubt)
            sure = torch.diagonal(torch.cholesky_inverse(self.root_))
            missed = self.weights_ / sure  # by what a row differs from what all others say
            strange = missed.abs() * sure.sqrt() > _STRANGE
            if not strange.any():
                break
            doubt = torch.where(strange, missed**2, doubt)
        return self

    def _prior(self) -> tuple[Tensor, Tensor]:
        parts, lengths = 2 + self.table_.names.shape[1], self.table_.values.shape[1]
        usual = [_PART] * parts + [_NOISE] + [_LENGTH] * lengths + [_FACTOR] * (_FACTORS * self.factors)
        centre, width = torch.tensor(usual, dtype=torch.float64).T
        return centre, width

    def _begin(self, usual: Tensor, wanted: Tensor) -> Tensor:
        """What is usual, with the factors that explain most by themselves."""
        if not self.factors:
            return usual
        return torch.cat([usual[:-_FACTORS], _plain_factors(usual, self.table_, wanted)])

    def predict(self, cases: Sequence[Case]) -> list[Range]:
        if not cases:
            return []
        table = _Table.of(cases)
        shared = _covariance(self.learned_, table, self.table_)
        logs = _log_forecast(self.learned_, table) + shared @ self.weights_
        known = (torch.linalg.solve_triangular(self.root_, shared.T, upper=False) ** 2).sum(0)
        parts, noise, _, _ = _named(self.learned_, table)
        spread = ((parts.sum() - known).clamp_min(0.0) + noise).sqrt()
        return [
            Range(math.exp(log - _SIDE * wide), math.exp(log), math.exp(log + _SIDE * wide))
            for log, wide in zip(logs.tolist(), spread.tolist(), strict=True)
        ]


def speed_of(cases: Sequence[Case], measured: Sequence[float]) -> Speed:
    """How fast device and host were, by the factors that explain most by themselves.

    To a power of two: what hides behind what asks for no more, and a fit on other rows finds its forecasts made.
    """
    table, made = _Table.of(cases), Residuals()
    made.table_ = table
    factors = torch.exp(_plain_factors(made._prior()[0], table, torch.tensor(np.log(measured))))
    device, moving, host, serial = table.parts.sum(0)[:4].tolist()
    found = factors[:4].tolist()
    compute = (found[0] * device + found[1] * moving) / (device + moving)
    issued = (found[2] * host + found[3] * serial) / (host + serial) if host + serial else 1.0
    return Speed(*(2.0 ** round(math.log2(min(max(factor, 1 / _SPEED), _SPEED))) for factor in (compute, issued)))


class _Table(NamedTuple):
    """Cases as columns."""

    parts: Tensor
    names: Any  # an array of texts, a column for each kind of name
    values: Tensor

    @classmethod
    def of(cls, cases: Sequence[Case]) -> _Table:
        parts = torch.tensor([case.parts for case in cases], dtype=torch.float64)
        values = torch.tensor([case.values for case in cases], dtype=torch.float64)
        return cls(parts, np.array([case.names for case in cases]), values)

    def at(self, rows: Any) -> _Table:
        return _Table(self.parts[rows], self.names[rows], self.values[rows])


def _named(learned: Tensor, table: _Table) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Variances of the parts, variance of the noise, lengths, and log factors."""
    parts, lengths = 2 + table.names.shape[1], table.values.shape[1]
    a, b, c, factors = torch.split(learned, [parts, 1, lengths, len(learned) - parts - 1 - lengths])
    return torch.exp(2 * a), torch.exp(2 * b), torch.exp(c), factors


def _log_forecast(learned: Tensor, table: _Table) -> Tensor:
    """As `Parts.seconds`, with factors; a bubble is a share of the forecast as it was made."""
    logs = _named(learned, table)[3]
    parts = table.parts if not len(logs) else table.parts * torch.exp(logs)
    device, moving, host, serial, waiting, bubble = parts.T
    busy = device + moving + serial + waiting
    paced = torch.log(busy) + torch.log1p((host / busy) ** _SOFT) / _SOFT
    return paced + torch.log1p(bubble / table.parts[:, [0, 1, 3, 4]].sum(1))


def _covariance(learned: Tensor, left: _Table, right: _Table, same: Tensor | None = None) -> Tensor:
    parts, _, lengths, _ = _named(learned, left)
    same = _same(left, right) if same is None else same
    apart = torch.cdist(left.values / lengths, right.values / lengths, compute_mode="donot_use_mm_for_euclid_dist")
    near = (1 + math.sqrt(3) * apart) * torch.exp(-math.sqrt(3) * apart)  # Matérn's of 3/2: it may bend, not jump
    offsets = (parts[1:-1, None, None] * same).sum(0)
    return parts[0] + offsets + parts[-1] * near


def _same(left: _Table, right: _Table) -> Tensor:
    """For each kind of name, which rows share it."""
    return torch.tensor(left.names.T[:, :, None] == right.names.T[:, None, :], dtype=torch.float64)


def _solved(
    learned: Tensor, table: _Table, wanted: Tensor, doubt: Tensor, same: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The root of the covariance of rows, and what each weighs in a prediction."""
    noise = _named(learned, table)[1]
    root = torch.linalg.cholesky(_covariance(learned, table, table, same) + torch.diag(noise + doubt + _TINY))
    off = wanted - _log_forecast(learned, table)
    return root, torch.cholesky_solve(off[:, None], root)[:, 0]


def _plain_factors(usual: Tensor, table: _Table, wanted: Tensor) -> Tensor:
    """Log factors with the least absolute error of logarithms; from several beginnings, as there are valleys."""
    from scipy.optimize import minimize

    def off(tried: Any) -> tuple[float, Any]:
        factors = torch.tensor(tried, requires_grad=True)
        missed = wanted - _log_forecast(torch.cat([usual[:-_FACTORS], factors]), table)
        value = (missed**2 + _TINY).sqrt().sum() + _far_factors(factors)
        value.backward()
        assert factors.grad is not None
        return value.item(), factors.grad.numpy()

    begins = [[math.log(f) for f in (device, device, host, host, 1.0, 1.0)] for device in _BEGIN for host in _BEGIN]
    bounds = [(-_FAR_FACTOR, _FAR_FACTOR)] * _FACTORS
    tries = [minimize(off, begin, jac=True, method="L-BFGS-B", bounds=bounds) for begin in begins]
    return torch.tensor(min(tries, key=lambda found: found.fun).x)


def _far_factors(factors: Tensor) -> Tensor:
    """Minus the logarithm of a Cauchy density: what is far costs little more than what is farther."""
    centre, width = _FACTOR
    return torch.log1p(((factors - centre) / width) ** 2).sum()


def _most_likely(start: Tensor, prior: tuple[Tensor, Tensor], table: _Table, wanted: Tensor, doubt: Tensor) -> Tensor:
    from scipy.optimize import minimize

    centre, width = prior
    same = _same(table, table)
    usual = len(centre) - len(_named(centre, table)[3])  # those that are no factors

    def unlikely(tried: Any) -> tuple[float, Any]:
        learned = torch.tensor(tried, requires_grad=True)
        root, weights = _solved(learned, table, wanted, doubt, same)
        off = wanted - _log_forecast(learned, table)
        unusual = (((learned - centre) / width)[:usual] ** 2).sum() / 2 + _far_factors(learned[usual:])
        value = off @ weights / 2 + torch.diagonal(root).log().sum() + unusual
        value.backward()
        assert learned.grad is not None
        return value.item(), learned.grad.numpy()

    far = _FAR * width
    far[usual:] = _FAR_FACTOR
    bounds = torch.stack([centre - far, centre + far], 1).tolist()
    found = minimize(unlikely, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _TRIES})
    return torch.tensor(found.x)
