"""SyncBatchNorm: on one replica it is a batch norm; what ranks exchange in it is left out, with a caveat."""

from __future__ import annotations

import torch
from torch import nn

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    def forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
        session.find(sync_batch_norm=True)
        return nn.BatchNorm2d.forward(self, input)

    replace(nn.SyncBatchNorm, "forward", forward)
    replace(nn.BatchNorm2d, "_check_input_dim", lambda self, input: None)
