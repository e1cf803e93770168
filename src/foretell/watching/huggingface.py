"""A callback for the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from foretell.watching.watch import Watch


class WatchCallback(TrainerCallback):
    """`Trainer(…, callbacks=[WatchCallback(foretell.watch("train.py:bert"))])`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.watch.step()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.watch.close()

    def _pause(self, *args: Any, **kwargs: Any) -> None:
        self.watch.pause()

    on_train_begin = on_epoch_begin = on_evaluate = on_save = on_predict = _pause
