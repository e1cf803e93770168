"""Signals: speech, sensors and sequences of samples, by one-dimensional convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from foretell.design.generated.convolutional import tower
from foretell.design.generated.draw import REGRESSIONS, Draw, Network, classify, regress

_SAMPLES = (2**16, 2**21)  # of the first feature map over the batch


class Stack(nn.Module):
    def __init__(self, draw: Draw, channels: int, width: int, length: int, outputs: int, per_place: bool) -> None:
        super().__init__()
        self.stem = nn.Conv1d(channels, width, 9, padding=4)
        self.tower, out = tower(draw, 1, width, (length,), mirrored=per_place and draw.chance(0.5))
        self.mixer: nn.Module | None = None
        kind = draw.weighted({"none": 3, "lstm": 2, "gru": 1, "encoder": 2})
        if kind in ("lstm", "gru"):
            recurrent = nn.LSTM if kind == "lstm" else nn.GRU
            self.mixer = recurrent(out, max(8, out // 2), bidirectional=True, batch_first=True)
            out = 2 * max(8, out // 2)
        elif kind == "encoder":
            heads = draw.divisor(out, 16)
            self.mixer = nn.TransformerEncoderLayer(out, heads, 2 * out, batch_first=True, norm_first=draw.chance(0.5))
        self.head, self.per_place = nn.Linear(out, outputs), per_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.tower(self.stem(x)).transpose(1, 2)
        if self.mixer is not None:
            features = self.mixer(features)
            features = features[0] if isinstance(features, tuple) else features
        out: torch.Tensor = self.head(features if self.per_place else features.mean(1))
        return out


def network(draw: Draw) -> Network:
    channels, width = draw.choice((1, 2, 40, 80, 128)), draw.width(32, 512)
    length = 64 * draw.between(2, 64)
    batch = max(1, min(512, draw.between(*_SAMPLES) // length // max(1, width // 128)))
    task = draw.weighted({"classify": 3, "regress": 2, "ctc": 3})
    if task == "classify":
        classes = draw.width(10, 2000)
        return Network(
            model=lambda: Stack(draw.again("model"), channels, width, length, classes, False),
            batch_size=batch,
            batch=lambda n: {"x": torch.randn(n, channels, length), "y": torch.randint(classes, (n,))},
            loss=classify,
        )
    if task == "regress":
        error = regress(draw.choice([name for name in REGRESSIONS if name != "cosine"]))
        return Network(
            model=lambda: Stack(draw.again("model"), channels, width, length, 1, False),
            batch_size=batch,
            batch=lambda n: {"x": torch.randn(n, channels, length), "y": torch.randn(n, 1)},
            loss=error,
        )
    letters, written = draw.width(16, 512), draw.count(4, 24)

    def ctc(model: Any, b: Mapping[str, Any]) -> torch.Tensor:
        scores = F.log_softmax(model(b["x"]).float(), -1).transpose(0, 1)
        places: Any = (scores.shape[0],) * scores.shape[1]  # lengths the host knows, as cuDNN asks for them
        spelled: Any = (b["y"].shape[1],) * scores.shape[1]
        return F.ctc_loss(scores, b["y"], places, spelled, zero_infinity=True)

    return Network(
        model=lambda: Stack(draw.again("model"), channels, width, length, letters, True),
        batch_size=min(batch, 128),
        batch=lambda n: {"x": torch.randn(n, channels, length), "y": torch.randint(1, letters, (n, written))},
        loss=ctc,
    )
