"""The four regressors of PredictDDL: linear, polynomial, support vectors, a perceptron; validation chooses among them.

scikit-learn fits them; what is kept are arrays, so that a saved predictor is no pickle and answers in microseconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
FORMS: Final = ("linear", "polynomial", "svr", "mlp")
_STRENGTHS: Final[Mapping[str, tuple[float, ...]]] = {
    "linear": (0.1, 1.0, 10.0, 100.0),  # weight of the squared coefficients
    "polynomial": (1.0, 10.0, 100.0, 1000.0),
    "svr": (1.0, 10.0, 100.0),  # cost of an error
    "mlp": (1.0, 10.0),
}
_FOLDS: Final = 4
_SAME: Final = 1e-9  # the deviation of a feature that does not vary
_BEYOND: Final = float(np.log(4.0))  # an answer stays within four times what was seen: polynomials run away


@dataclass(frozen=True, slots=True, kw_only=True)
class Regressor:
    """A fitted form: standardised features in, logarithm of the target out."""

    form: str
    strength: float
    state: Mapping[str, Floats]
    validated: float  # mean relative error on architectures it did not see while it was chosen; NaN: there was one only

    def standardised(self, features: Floats) -> Floats:
        """Of the features that varied where it was fitted: the others taught it nothing."""
        own = features[:, self.state["kept"].astype(np.int64)]
        return np.asarray((own - self.state["mean"]) / self.state["scale"], dtype=np.float64)

    def predict(self, features: Floats) -> Floats:
        s, x = self.state, self.standardised(features)
        if self.form == "polynomial":
            x = _squares(x)
        elif self.form == "svr":
            distance = (x**2).sum(1)[:, None] + (s["vectors"] ** 2).sum(1) - 2 * x @ s["vectors"].T
            x = np.exp(-s["gamma"] * distance)
        elif self.form == "mlp":
            x = np.maximum(x @ s["weight1"] + s["bias1"], 0.0)
        return np.asarray(np.clip(x @ s["weight"] + s["intercept"], s["least"], s["most"]), dtype=np.float64)


def choose(features: Floats, target: Floats, groups: Sequence[str], forms: Sequence[str] = FORMS) -> Regressor:
    """The form and strength that err least on groups left out, fitted on all. `target` is a logarithm."""
    folds = list(_folds(groups))
    if not folds:
        return fit(features, target, "linear", 1.0)
    errors: dict[tuple[str, float], float] = {}
    for form in forms:
        for strength in _STRENGTHS[form]:
            found = []
            for seen, left in folds:
                predicted = fit(features[seen], target[seen], form, strength).predict(features[left])
                found.append(np.abs(np.expm1(predicted - target[left])))
            errors[form, strength] = float(np.concatenate(found).mean())
    form, strength = min(errors, key=lambda chosen: errors[chosen])
    return fit(features, target, form, strength, validated=errors[form, strength])


def fit(features: Floats, target: Floats, form: str, strength: float, validated: float = float("nan")) -> Regressor:
    deviation = features.std(axis=0)
    varied = np.flatnonzero(deviation > _SAME)
    kept = varied if len(varied) else np.arange(1)
    mean, scale = features[:, kept].mean(axis=0), np.maximum(deviation[kept], _SAME)
    state = _state((features[:, kept] - mean) / scale, target, form, strength)
    state |= {"kept": kept, "mean": mean, "scale": scale}
    state |= {"least": target.min() - _BEYOND, "most": target.max() + _BEYOND}
    arrays = {name: np.asarray(value, dtype=np.float64) for name, value in state.items()}
    return Regressor(form=form, strength=strength, state=arrays, validated=validated)


def _state(x: Floats, target: Floats, form: str, strength: float) -> dict[str, Any]:
    if form in ("linear", "polynomial"):
        from sklearn.linear_model import Ridge

        ridge = Ridge(alpha=strength).fit(x if form == "linear" else _squares(x), target)
        return {"weight": ridge.coef_, "intercept": ridge.intercept_}
    if form == "svr":
        from sklearn.svm import SVR

        gamma = 1 / x.shape[1]
        svr = SVR(C=strength, epsilon=0.01, gamma=gamma).fit(x, target)
        weights = {"vectors": svr.support_vectors_, "weight": svr.dual_coef_[0]}
        return {**weights, "gamma": gamma, "intercept": svr.intercept_[0]}
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    middle = float(target.mean())
    mlp = MLPRegressor(hidden_layer_sizes=(32,), alpha=strength, solver="lbfgs", max_iter=100, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one that stops early is judged like any other
        mlp.fit(x, target - middle)
    first, last = mlp.coefs_
    intercept = mlp.intercepts_[1][0] + middle
    return {"weight1": first, "bias1": mlp.intercepts_[0], "weight": last[:, 0], "intercept": intercept}


def _squares(x: Floats) -> Floats:
    """The features and all their products, as a polynomial of the second degree has them."""
    first, second = np.triu_indices(x.shape[1])
    return np.concatenate([x, x[:, first] * x[:, second]], axis=1)


def _folds(groups: Sequence[str]) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    from sklearn.model_selection import GroupKFold

    different = len(set(groups))
    if different > 1:
        yield from GroupKFold(min(_FOLDS, different)).split(np.zeros(len(groups)), groups=list(groups))
