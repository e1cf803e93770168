"""Numbers of a form that were found, and the profile that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from foretell.forecasting.profile_response import ProfileResponse
from foretell.learn.adapt.form import LEVELS, LINKS, OF_RANKS, Form, name_of_network, name_of_ranks, name_of_seconds
from foretell.learn.adapt.trial import Trial
from foretell.precision import PRECISIONS
from foretell.profile import FAMILIES, Links, Profile, plain
from foretell.units import Seconds

Floats = npt.NDArray[np.float64]
_SEEN: Final = 5e-4  # by which a factor must differ from 1 to be written
_SHORT: Final[Seconds] = 1e-6  # that are none


class Fitted:
    """Numbers of a form that were found."""

    def __init__(self, form: Form, numbers: Floats, unit: Seconds) -> None:
        self.form, self.numbers, self.unit = form, numbers, unit

    @classmethod
    def mean(cls, those: Sequence[Fitted], weights: Floats) -> Fitted:
        """Of forms that were fitted on the same steps; a number that a form does not have changes nothing there."""
        full = Form.union([each.form for each in those])
        found = sum(weight * each.among(full) for each, weight in zip(those, weights.tolist(), strict=True))
        return cls(full, np.asarray(found, dtype=np.float64), those[0].unit)

    @classmethod
    def of(cls, profile: Profile, unit: Seconds) -> Fitted:
        """What a profile says in numbers; what it has of kinds is in its families, and a residual model stays behind."""
        networks = tuple(sorted({*profile.networks, *profile.network_seconds}))
        logs = {
            "device": profile.device, "host": profile.host, "communication": profile.communication,
            "neighbours": profile.links.neighbours, **profile.precisions,
            **{family: profile.families.get(family, profile.families.get(plain(family), 1.0)) for family in FAMILIES},
            **{name_of_network(network): factor for network, factor in profile.networks.items()},
            **{name_of_ranks(what, ranks): factor for what in OF_RANKS for ranks, factor in profile.of_ranks(what).items()},
        }  # fmt: skip
        plainly = {
            "fixed": profile.fixed_seconds / unit, "crowding": profile.links.crowding,
            **{name_of_seconds(network): profile.network_seconds.get(network, 0.0) / unit for network in networks},
        }  # fmt: skip
        levels = tuple(level for level in LEVELS if level != "kinds")
        ranks = tuple(sorted({ranks for what in OF_RANKS for ranks in profile.of_ranks(what)}))
        form = Form(levels=levels, networks=networks, ranks=ranks)
        found = [plainly[n] if n in plainly else float(np.log(logs.get(n, 1.0))) for n in form.names]
        return cls(form, np.array(found), unit)

    def among(self, full: Form) -> Floats:
        """The same numbers in the places of a form that has more."""
        place = {name: i for i, name in enumerate(full.names)}
        numbers = np.zeros(len(place))
        numbers[[place[name] for name in self.form.names]] = self.numbers
        return numbers

    def beyond(self, before: Fitted) -> dict[str, float]:
        """By how much each number differs from those before."""
        known = dict(zip(before.form.names, before.numbers.tolist(), strict=True))
        return {n: value - known.get(n, 0.0) for n, value in zip(self.form.names, self.numbers.tolist(), strict=True)}

    def profile(self, name: str) -> Profile:
        value = dict(zip(self.form.names, self.numbers.tolist(), strict=True))
        device, host, communication = (float(np.exp(value.get(n, 0.0))) for n in ("device", "host", "communication"))
        own = np.exp(self.form.by_part()[: len(FAMILIES)] @ self.numbers) / device
        families: dict[str, float] = {}
        for family, factor in zip(FAMILIES, own.tolist(), strict=True):
            if abs(factor - families.get(plain(family), 1.0)) > _SEEN:
                families[family] = round(factor, 4)
        precisions: dict[str, float] = {
            p: round(float(np.exp(value[p])), 4) for p in PRECISIONS if abs(value.get(p, 0.0)) > _SEEN
        }
        return Profile(
            name=name, device=device, host=host, communication=communication, fixed_seconds=self.fixed, families=families,
            precisions=precisions, links=self._links(value), networks=self._networks(value),
            network_seconds={n: s for n in self.form.networks if (s := value.get(name_of_seconds(n), 0.0) * self.unit) > _SHORT},
            host_of_ranks=self._of_ranks(value, "host"), communication_of_ranks=self._of_ranks(value, "communication"),
        )  # fmt: skip

    def _networks(self, value: Mapping[str, float]) -> dict[str, float]:
        """Of every network that was measured, so that it is known to be one."""
        return {n: round(float(np.exp(value.get(name_of_network(n), 0.0))), 4) for n in self.form.networks}

    def _of_ranks(self, value: Mapping[str, float], what: str) -> dict[str, float]:
        found = {str(ranks): value.get(name_of_ranks(what, ranks), 0.0) for ranks in self.form.ranks}
        return {ranks: round(float(np.exp(log)), 4) for ranks, log in found.items() if abs(log) > _SEEN}

    def _links(self, value: Mapping[str, float]) -> Links:
        crowding, neighbours = (value.get(name, 0.0) for name in LINKS)
        return Links(crowding=round(crowding, 4), neighbours=round(float(np.exp(neighbours)), 4))

    @property
    def fixed(self) -> Seconds:
        """Seconds that are added to each step."""
        names = self.form.names
        return float(self.numbers[names.index("fixed")]) * self.unit if "fixed" in names else 0.0

    def fixed_of(self, responses: Sequence[ProfileResponse]) -> Floats:
        """Seconds that are added to each of these steps: of all alike, and of its network."""
        value = dict(zip(self.form.names, self.numbers.tolist(), strict=True))
        own = [value.get(name_of_seconds(r.network), 0.0) for r in responses]
        return self.fixed + self.unit * np.array(own)

    def logs(self, responses: Sequence[ProfileResponse]) -> Floats:
        return Trial(self.form, responses, self.unit, self.numbers, []).logs(np.zeros(0))[0]
