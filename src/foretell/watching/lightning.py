"""A callback for Lightning's Trainer."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from foretell.watching.watch import Watch


class WatchCallback(Callback):  # type: ignore[misc]  # Lightning need not be installed where types are checked
    """`Trainer(…, callbacks=[WatchCallback(foretell.watch("train.py:resnet"))])`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self._steps = 0

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step != self._steps:  # with accumulated gradients, not after every batch
            self._steps = trainer.global_step
            self.watch.step()

    def _pause(self, *args: Any, **kwargs: Any) -> None:
        self.watch.pause()

    def _close(self, *args: Any, **kwargs: Any) -> None:
        self.watch.close()

    on_train_epoch_start = on_validation_start = on_validation_end = on_save_checkpoint = _pause
    on_fit_end = on_exception = _close
