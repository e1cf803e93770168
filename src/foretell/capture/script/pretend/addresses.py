"""Addresses of tensors without contents: libraries tell by them which tensors share memory, and which are copies."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from foretell.capture.as_gpu.patches import replace
from foretell.capture.script.session import Session


def install(session: Session) -> None:
    """Give each storage a number of its own, where all would have none."""
    of_tensor, of_storage = torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr

    def data_ptr(self: Any) -> int:
        if not isinstance(self, FakeTensor) or self.numel() == 0 or self.layout is not torch.strided:
            return of_tensor(self)
        return int(self.untyped_storage()._cdata + self.storage_offset() * self.element_size())

    def storage_data_ptr(self: Any) -> int:
        return int(self._cdata) if self.device.type == "meta" and self.nbytes() else of_storage(self)

    replace(torch.Tensor, "data_ptr", data_ptr)
    replace(torch.UntypedStorage, "data_ptr", storage_data_ptr)
