"""How fast a step is captured: beside PyTorch's own FlopCounterMode on the same fake-tensor step, and for a large Llama.

Both modes run the same warmed-up step in one process, in turn, and the best of several runs counts; process start is
left out. The large model is captured in a fresh process, and timed with and without what the process imports.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any, Final

RUNS: Final = 5
STEPS: Final = [
    ("timm/resnet50", {"batch": "8"}),
    ("timm/vit_base_patch16_224", {"batch": "8", "precision": "amp-bf16"}),
    ("hf/llama-small", {"batch": "2", "seq": "512", "precision": "bf16"}),
]
LARGE: Final = ("hf/llama-3-70b", {"batch": "1", "seq": "4096", "precision": "bf16"})


def compare(source: str, settings: dict[str, str]) -> dict[str, Any]:
    """Seconds of one step under each mode."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    from foretell.capture.as_gpu import behave_as_gpu
    from foretell.capture.recorder import Recorder
    from foretell.capture.trace import fake_step
    from foretell.capture.values import Values
    from foretell.sources.resolve import load_workload

    behave_as_gpu()
    workload = load_workload(source, settings)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    values = Values(fake)
    with fake:
        with Recorder(values):
            step = fake_step(workload, values)
            step.run()
        if (detection := sys.modules.get("transformers.utils.import_utils")) is not None:
            # FlopCounterMode has no values to answer with, so both modes run the step that Transformers takes when fake.
            vars(detection)["is_fake_tensor"] = lambda value: isinstance(value, FakeTensor)
        counting, recording = [], []
        for _ in range(RUNS):
            began = time.perf_counter()
            with FlopCounterMode(display=False):
                step.run()
            counting.append(time.perf_counter() - began)
            recorder = Recorder(values)
            began = time.perf_counter()
            with recorder, recorder.modules_of(step.model):
                recorder.recording = True
                step.run()
                recorder.recording = False
            recorder.graph(name=workload.name)
            recording.append(time.perf_counter() - began)
    return {"source": source, "flop_counter_seconds": min(counting), "recorder_seconds": min(recording),
            "ratio": min(recording) / min(counting)}  # fmt: skip


def capture_large(source: str, settings: dict[str, str]) -> dict[str, Any]:
    """Seconds of a capture in this process, imports apart, and the peak of its memory."""
    from foretell.capture.trace import trace
    from foretell.sources.resolve import load_workload

    workload = load_workload(source, settings)
    began = time.perf_counter()
    graph = trace(workload)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"source": source, "seconds": seconds, "peak_bytes": peak, "ops": len(graph.ops)}


def in_process(number: int) -> tuple[dict[str, Any], float]:
    """What this module prints for a step, and the seconds of its whole process: a capture changes one for good."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "foretell_bench.speed.captures", str(number)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - began


def run(as_json: bool = False) -> None:
    rows = []
    for number in range(len(STEPS)):
        rows.append(in_process(number)[0])
        if not as_json:
            print(
                "{source:32} FlopCounterMode {flop_counter_seconds:.2f} s   recorder {recorder_seconds:.2f} s   "
                "ratio {ratio:.2f}".format(**rows[-1]),
                flush=True,
            )
    large, whole = in_process(len(STEPS))
    if as_json:
        print(json.dumps({"steps": rows, "large": large | {"process_seconds": whole}}, indent=2))
    else:
        print(
            f"{large['source']:32} captured in {large['seconds']:.1f} s ({whole:.1f} s with the start of the process and its "
            f"imports) and {large['peak_bytes'] / 2**30:.2f} GiB, {large['ops']:,} ops"
        )


if __name__ == "__main__":
    step = int(sys.argv[1])
    print(json.dumps(compare(*STEPS[step]) if step < len(STEPS) else capture_large(*LARGE)))
