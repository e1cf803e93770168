"""Steps of architectures drawn at random among all that have a name and are not in architectures.py.

They were drawn before anything was known of them, so that a model fitted earlier can be tried on them. An architecture is
of the family of its kin there.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Final

from foretell.campaign.jobs import Campaign
from foretell.measure.record import Point
from foretell.sources import named as zoo
from foretell_bench.measuring.h200.architectures import FAMILY, Architecture
from foretell_bench.measuring.h200.points import (
    ALLOWED_PRECISIONS,
    PRECISIONS,
    REGIMES,
    TEXT_LENGTHS,
    drawn,
    point_of,
)

_COUNTS = {"timm": 48, "hf": 24, "torchvision": 12}
_BUSY_COUNTS = {"timm": 14, "hf": 9, "torchvision": 5}
_MORE_COUNTS = {"timm": 28, "hf": 12, "torchvision": 6}
_SEED, _BUSY_SEED = 15, 16
_BUSY = 0.2  # seconds at the largest batch
_TRIED = 4  # samples
_TOO_LARGE = re.compile(
    r"giant|gigantic|enormous|huge|_7b|so400m|bigG|xxlarge|quantized|128gf|naflex|deepseek-v3|dbrx|80b"
)
_NEW_MODULES: Final = {  # of timm, none of whose networks is in architectures.py, and what they are
    "cnn": "dla inception_v3 pnasnet selecsls senet tresnet",
    "depthwise-cnn": "hardcorenas lcnetv2 repghost xception mobilenetv5",
    "hybrid-vision": "coat cpubone csatv2 efficientformer_v2 efficientvit_msra lowformer vitamin",
    "vit": "gemma4_vit naflexvit vision_transformer_sam",
    "windowed-vit": "hieradet_sam2",
}
_PARTS = {  # kind of a Hugging Face network by what its name holds, the first that fits
    "moe": r"moe|gpt-oss|mixtral",
    "ssm": r"mamba|jamba|bamba|zamba|rwkv|recurrentgemma",
    "speech": r"whisper|wav2vec|data2vec-audio|unispeech",
    "multimodal": r"clip|llava|paligemma|vl-|gemma-3-4b",
    "encoder-decoder": r"t5|mbart|pegasus|blenderbot|led-|prophetnet",
    "encoder": r"bert|mpnet|big-bird",
    "segmentation": r"segmentation|glpn",
    "video": r"vivit",
    "vit": r"^vit|deit|beit",
    "windowed-vit": r"swin|hiera",
    "depthwise-cnn": r"convnext|focalnet",
    "cnn": r"regnet",
    "mlp-vision": r"poolformer",
    "hybrid-vision": r"mobilevit|levit|pvt|swiftformer",
}


def kin(source: str) -> str:
    """The family of an architecture."""
    library, _, name = source.partition("/")
    if library == "timm":
        zoo.workload_function("timm", "resnet18")  # timm loads where torchvision is made ready for it
        from timm.models import _registry

        modules = {s: _registry._model_to_module.get(s.partition("/")[2]) for s in FAMILY if s.startswith("timm/")}
        own = _registry._model_to_module[name]
        new = (family for family, names in _NEW_MODULES.items() if own in names.split())
        return next((FAMILY[s] for s, module in modules.items() if module == own), None) or next(new, own)
    if library == "torchvision":
        stem = re.match(r"[a-z]+", name)
        assert stem is not None
        return next((f for s, f in FAMILY.items() if s.partition("/")[2].startswith(stem.group())), stem.group())
    return next((family for family, words in _PARTS.items() if re.search(words, name)), "decoder")


def chosen(draw: random.Random, counts: dict[str, int]) -> list[str]:
    from foretell.sources.named import huggingface, timm, torchvision

    zoo.workload_function("torchvision", "resnet18")
    names = {"timm": timm.names(), "hf": huggingface.names(), "torchvision": torchvision.names()}
    found = []
    for library, count in counts.items():
        free = [n for n in names[library] if f"{library}/{n}" not in FAMILY and not _TOO_LARGE.search(n)]
        by_stem: dict[str, list[str]] = {}
        for name in free:
            by_stem.setdefault(re.split(r"[_\d-]", name)[0], []).append(name)  # no stem crowds the others out
        stems = draw.sample(sorted(by_stem), min(count, len(by_stem)))
        found += [f"{library}/{draw.choice(by_stem[stem])}" for stem in stems]
    return found


def base_of(source: str, family: str, settings: dict[str, str]) -> int:
    """Samples, or tokens, that keep the device busy for long enough."""
    import foretell

    text = {"seq": "128"} if family in TEXT_LENGTHS and family != "encoder-decoder" else {}
    graph = foretell.capture_graph(source, {"batch": str(_TRIED), "precision": "amp-bf16", **settings, **text})
    forecast = foretell.forecast(graph, "h200")
    batches = min(_BUSY / forecast.device_time.seconds, 40 * 2**30 / forecast.memory.allocated)
    return max(1, int(_TRIED * batches * (128 if family in TEXT_LENGTHS else 1)))


def run(file: Path, *, busy: bool = False, seed: int | None = None) -> None:
    """Write the campaign; `busy` keeps the device busy at every batch, a `seed` draws others than those before."""
    draw = random.Random(_SEED)
    sources = chosen(draw, _COUNTS)
    before = set(sources)
    if busy or seed:
        draw = random.Random(_BUSY_SEED)
        sources = [s for s in chosen(draw, _BUSY_COUNTS) if s not in before]
        before |= set(sources)
    if seed:
        draw = random.Random(seed)
        sources = [s for s in chosen(draw, _MORE_COUNTS) if s not in before]
    points = []
    for i, source in enumerate(sources):
        family = kin(source)
        large = [int(n) for n in re.findall(r"-(\d+)b", source)]
        cut = family in ("moe", "ssm") or (source.startswith("hf/") and max(large, default=0) > 2)
        settings = {"layers": "2"} if cut else {}
        precision = drawn(draw, dict(ALLOWED_PRECISIONS.get(family, PRECISIONS)))
        try:
            base = base_of(source, family, settings)
        except Exception as error:
            print(f"{source}: {str(error)[:200]}", flush=True)
            continue
        regime = "large" if busy else REGIMES[i % 3]
        point = point_of(draw, Architecture(source=source, family=family, base=base), regime, precision)
        points.append(Point(source=source, settings={**point.settings, **settings}))
        print(family, base, points[-1], flush=True)
    file.write_text("".join(f"{job.to_line()}\n" for job in Campaign.of(points).jobs))
