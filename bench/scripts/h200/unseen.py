"""Steps of architectures drawn at random among all that have a name and are not in points.py.

    python bench/scripts/h200/unseen.py FILE            writes the campaign, with batches for about a fifth of a second or less
    python bench/scripts/h200/unseen.py FILE --busy     fewer and others, all with batches that keep the device busy
    python bench/scripts/h200/unseen.py FILE --seed 17  as many others again, none that an earlier draw has

They were drawn before anything was known of them, so that a model fitted earlier can be tried on them. An architecture is
of the family of its kin in points.py.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "src")]

from points import _ALLOWED_PRECISIONS, _PRECISIONS, _REGIMES, _TEXT, FAMILY, Architecture, _drawn, _point

from foretell.campaign.jobs import Campaign
from foretell.measure.record import Point
from foretell.sources import named as zoo

_COUNTS = {"timm": 48, "hf": 24, "torchvision": 12}
_BUSY_COUNTS = {"timm": 14, "hf": 9, "torchvision": 5}
_MORE_COUNTS = {"timm": 28, "hf": 12, "torchvision": 6}
_SEED, _BUSY_SEED = 15, 16
_BUSY = 0.2  # seconds at the largest batch
_TRIED = 4  # samples
_TOO_LARGE = re.compile(
    r"giant|gigantic|enormous|huge|_7b|so400m|bigG|xxlarge|quantized|128gf|naflex|deepseek-v3|dbrx|80b"
)
_NEW_MODULES = {  # of timm, none of whose networks is in points.py, and what they are
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
        mine = _registry._model_to_module[name]
        new = (family for family, names in _NEW_MODULES.items() if mine in names.split())
        return next((FAMILY[s] for s, module in modules.items() if module == mine), None) or next(new, mine)
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
    from foretell.capture import capture

    text = {"seq": "128"} if family in _TEXT and family != "encoder-decoder" else {}
    graph = capture(source, {"batch": str(_TRIED), "precision": "amp-bf16", **settings, **text})
    took = foretell.forecast(graph, "h200").device_time.seconds
    memory = foretell.forecast(graph, "h200").memory.allocated
    batches = min(_BUSY / took, 40 * 2**30 / memory)
    return max(1, int(_TRIED * batches * (128 if family in _TEXT else 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--seed", type=int, help=f"above {_BUSY_SEED}")
    options = parser.parse_args()
    draw = random.Random(_SEED)
    sources = chosen(draw, _COUNTS)
    drawn = set(sources)
    if options.busy or options.seed:
        draw = random.Random(_BUSY_SEED)
        sources = [s for s in chosen(draw, _BUSY_COUNTS) if s not in drawn]
        drawn |= set(sources)
    if options.seed:
        draw = random.Random(options.seed)
        sources = [s for s in chosen(draw, _MORE_COUNTS) if s not in drawn]
    points = []
    for i, source in enumerate(sources):
        family = kin(source)
        large = [int(n) for n in re.findall(r"-(\d+)b", source)]
        settings = (
            {"layers": "2"}
            if family in ("moe", "ssm") or (source.startswith("hf/") and max(large, default=0) > 2)
            else {}
        )
        precision = _drawn(draw, dict(_ALLOWED_PRECISIONS.get(family, _PRECISIONS)))
        try:
            base = base_of(source, family, settings)
        except Exception as error:
            print(f"{source}: {str(error)[:200]}", flush=True)
            continue
        point = _point(
            draw,
            Architecture(source=source, family=family, base=base),
            "large" if options.busy else _REGIMES[i % 3],
            precision,
        )
        points.append(Point(source=source, settings={**point.settings, **settings}))
        print(family, base, points[-1], flush=True)
    options.file.write_text("".join(f"{job.to_line()}\n" for job in Campaign.of(points).jobs))


if __name__ == "__main__":
    main()
