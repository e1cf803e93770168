"""How long the planner takes: an 8-billion-parameter Llama over more and more candidates and devices, on two processes.

The step is captured before the clock starts, and no answer of an earlier search is used. Beside wall time stands the time
of processors, which another program on the machine does not lengthen as much.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from foretell import JobLength, Search, Space, plan
from foretell.planner.steps import steps_of

LLAMA: Final = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 8192, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "tie_word_embeddings": False,
}  # fmt: skip
SETTINGS: Final = {"seq": "4096", "precision": "bf16", "optimizer": "adamw"}
SEARCHES: Final = (
    (("h100-sxm",), 16),
    (("h100-sxm", "a100-80g-sxm"), 128),
    (("h100-sxm", "a100-80g-sxm", "l40s"), 256),
    (("h100-sxm",), 64),
    (("h100-sxm",), 256),
)


def run(workers: int = 2, searches: Sequence[int] = (), save: Path | None = None) -> None:
    """Time the searches of these numbers, or all of them."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(LLAMA))
        os.environ["FORETELL_CACHE"] = folder
        steps_of(str(config), SETTINGS, {})
        print(f"{'devices':<36}{'up to':>6}{'candidates':>12}{'simulated':>11}{'wall s':>9}{'processor s':>13}")
        for gpus, most in [SEARCHES[number] for number in searches or range(len(SEARCHES))]:
            (Path(folder) / "plans.sqlite").unlink(missing_ok=True)
            began, used = time.monotonic(), _processor_seconds()
            found = plan(
                str(config),
                settings=SETTINGS,
                job=JobLength.usual(tokens=15e9),
                space=Space(gpus=gpus, max_devices=most, global_batch=256),
                search=Search(workers=workers),
            )
            took, used = time.monotonic() - began, _processor_seconds() - used
            figures = f"{found.candidates:>12,}{found.simulated:>11,}{took:>9.1f}{used:>13.1f}"
            print(f"{', '.join(gpus):<36}{most:>6}{figures}", flush=True)
            rows.append(
                {
                    "devices": gpus, "up_to": most, "candidates": found.candidates, "simulated": found.simulated,
                    "wall_seconds": round(took, 1), "processor_seconds": round(used, 1), "workers": workers,
                }
            )  # fmt: skip
            if save is not None:
                save.write_text(json.dumps(rows, indent=1) + "\n")


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
