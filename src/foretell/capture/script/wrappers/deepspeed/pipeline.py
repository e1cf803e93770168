"""DeepSpeed's pipelines: all layers are built here and run in order, and the plan says how many stages share them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foretell.capture.script.wrappers.deepspeed.engine import Engine


class LayerSpec:
    """A layer that is built later."""

    def __init__(self, typename: Any, *args: Any, **kwargs: Any) -> None:
        self.typename, self.args, self.kwargs = typename, args, kwargs

    def build(self, log: bool = False) -> Any:
        return self.typename(*self.args, **self.kwargs)


class TiedLayerSpec(LayerSpec):
    """A layer whose module is shared with others of its key."""

    def __init__(
        self,
        key: str,
        typename: Any,
        *args: Any,
        forward_fn: Any = None,
        tied_weight_attr: Any = "weight",
        **kwargs: Any,
    ) -> None:
        super().__init__(typename, *args, **kwargs)
        self.key, self.forward_fn, self.tied_weight_attr = key, forward_fn, tied_weight_attr


class PipelineModule(nn.Module):
    """A list of layers; `num_stages` share them."""

    def __init__(
        self, layers: Any, num_stages: int | None = None, topology: Any = None, loss_fn: Any = None, *args: Any,
        activation_checkpoint_interval: int = 0, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self._interval = activation_checkpoint_interval
        self.__dict__["loss_fn"] = loss_fn  # also where it is a module, which is no layer
        self.num_stages = num_stages or (topology.get_dim("pipe") if topology is not None else 1)
        self.tied_modules = nn.ModuleDict()
        self.forward_funcs: list[Any] = []
        for place, layer in enumerate(layers):
            self.forward_funcs.append(self._built(layer, place))

    def _built(self, layer: Any, place: int) -> Any:
        if isinstance(layer, TiedLayerSpec):
            if layer.key not in self.tied_modules:
                self.tied_modules[layer.key] = layer.build()
            module, function = self.tied_modules[layer.key], layer.forward_fn
            return module if function is None else lambda value: function(module, value)
        made = layer.build() if isinstance(layer, LayerSpec) else layer
        if isinstance(made, nn.Module):
            self.add_module(str(place), made)
        return made

    def forward(self, value: Any) -> Any:
        if not self._interval:
            return self._run(0, len(self.forward_funcs), value)
        for start in range(0, len(self.forward_funcs), self._interval):
            end = min(start + self._interval, len(self.forward_funcs))
            value = checkpoint(lambda given, a=start, b=end: self._run(a, b, given), value, use_reentrant=False)
        return value

    def _run(self, start: int, end: int, value: Any) -> Any:
        for function in self.forward_funcs[start:end]:
            value = function(value)
        return value


class PipelineEngine(Engine):
    """An engine that fetches micro-batches itself."""

    def train_batch(self, data_iter: Iterator[Any] | None = None) -> Tensor:
        source = data_iter if data_iter is not None else self.batches
        self.train()
        loss = torch.zeros((), device="cuda")
        for _ in range(self.steps):
            loss = self._loss(next(source))
            self.backward(loss)
            self.step()
        return loss.detach()

    @torch.no_grad()
    def eval_batch(self, data_iter: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        self.eval()
        return self._loss(next(data_iter))

    def _loss(self, batch: Any) -> Any:
        inputs, labels = batch
        out, loss_of = self(_on_device(inputs)), vars(self.module)["loss_fn"]
        return out if loss_of is None else loss_of(out, _on_device(labels))

    def set_dataiterator(self, iterator: Iterator[Any]) -> None:
        self.batches = iterator

    def set_dataloader(self, loader: Any) -> None:
        self.batches = iter(loader)

    def is_first_stage(self) -> bool:
        return True

    def is_last_stage(self) -> bool:
        return True


def _on_device(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to("cuda")
    return type(value)(_on_device(each) for each in value) if isinstance(value, list | tuple) else value
