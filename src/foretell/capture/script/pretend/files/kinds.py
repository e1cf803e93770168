"""Which paths are data that a user would have, and of what kind, by their names."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from foretell.capture.reads import is_library

PICTURES: Final = frozenset(".jpg .jpeg .png .bmp .ppm .pgm .tif .tiff .webp .gif".split())
SOUNDS: Final = frozenset(".wav .flac .mp3 .ogg .m4a .sph".split())
VIDEOS: Final = frozenset(".mp4 .avi .mkv .webm .mov".split())
VOLUMES: Final = frozenset(".nii .mha .mhd .nrrd .dcm".split())
TEXTS: Final = frozenset(".txt .text .tokens .src .tgt .en .de .fr .zh .lst .list .flist .names .trn .lab .scp".split())
TABLES: Final = frozenset(".csv .tsv".split())
DOCUMENTS: Final = frozenset(".json .jsonl .ndjson .pkl .pickle .p".split())
OTHERS: Final = frozenset(
    ".npy .npz .mat .h5 .hdf5 .bin .xml .lmdb .mdb .tar .zip .gz .tgz .parquet .xlsx .off .ply .pcd .obj .arrow .bvh .flo .pfm".split()
)
SAMPLES: Final = (
    PICTURES | SOUNDS | VIDEOS | VOLUMES | frozenset((".flo", ".pfm", ".npy", ".npz"))
)  # a file for each sample
DATA: Final = PICTURES | SOUNDS | VIDEOS | VOLUMES | TEXTS | TABLES | DOCUMENTS | OTHERS
SETTINGS: Final = frozenset(
    ".yaml .yml .cfg .ini .toml .conf .py .sh .md .prototxt .proto .pt .pth .ckpt .model".split()
)
_CACHES: Final = frozenset(
    ".pkl .pickle .p .npy .npz .cache .pt .pth .arrow .idx".split()
)  # of what a script has made of data
_OUTPUTS: Final = re.compile(
    r"(^|[_\-./ ])(outs?|outputs?|logs?|logging|results?|runs?|exps?|experiments?|work_?dirs?|saved?|saves|saved_models?|"
    r"checkpoints?|ckpts?|models?|weights?|snapshots?|resume|load|init|name|config|pretrained?|tmp|temp|cache[sd]?|\.cache|"
    r"plots?|figs?|figures?|visuals?|tensorboard|wandb|lightning_logs|history|backup|preds?|predictions?|generated|"
    r"best|last|latest|lock|tmp_.*|tmp\w{8}|eval_results?|(out|log|result|run|exp|save|ckpt|model|load|dump)(dir|folder|path|root)s?)"
    r"([_\-./ ]|\d*$)", re.IGNORECASE,
)  # fmt: skip
_DATA: Final = re.compile(
    r"data|corpus|corpora|im(a?)ges?|imgs?|pictures?|photos?|jpeg|labels?|masks?|annot|segmentation|wavs?|audios?|speech|"
    r"videos?|frames|caption|vocab|imagenet|ilsvrc|cifar|mnist|svhn|kitti|cityscapes|ade20k|celeb|ffhq|lsun|div2k|flickr|"
    r"librispeech|ljspeech|vctk|timit|modelnet|shapenet|s3dis|scannet|wikitext|enwik|multi30k|squad|openwebtext|shakespeare|"
    r"citeseer|pubmed|movielens|electricity|horse2zebra|facades|edges2|brats|kinetics|"
    r"(^|[_\-.])(train|trn|val|valid|validation|test|dev|trainval|splits?|source|clean|noisy|raw|texts?|mels?|clips|gt|lr|hr|"
    r"coco|voc|lfw|set5|set14|bsd|urban100|libri|lj|market|msmt|ptb|wiki|wmt|iwslt|imdb|glue|cora|ogb|ml|ett|traffic|weather|"
    r"nyu|maps|monet|pairs|isic|chest|ct|mri|lits|synapse|nerf|llff|synthetic|ucf|hmdb|bookcorpus)(sets?)?([_\-.\d]|$)", re.IGNORECASE,
)  # fmt: skip
_OF_A_PACKAGE: Final = re.compile(r"\.(dist|egg)-info(/|$)")  # what is said of a package, wherever that was put
# An option that names a folder, of which nothing says that results, or the script's own files, go there.
_FOLDERS: Final = re.compile(
    r"^-{1,2}(?![\w\-]*(default|project|proj|home|base|export|write|dest|dump|store|artifact|code|repo))[\w\-]+[-_](dir|folder|root)$",
    re.IGNORECASE,
)

_OF_PICTURES: Final = re.compile(r"im(a?)ges?|imgs?|pictures?|photos?|jpe?gs?", re.IGNORECASE)
WEIGHTS: Final = re.compile(r"\.(pth|pt|ckpt|t7|safetensors|bin)(\.tar)?$", re.IGNORECASE)


def ending_of(path: Any) -> str:
    name = os.path.basename(str(path)).lower()
    if name.endswith((".gz", ".bz2", ".xz")) and not name.endswith((".tar.gz", ".tar.bz2", ".tar.xz")):
        name = name.rpartition(".")[0]
    return os.path.splitext(name)[1]


def is_picture(path: str, reader: str) -> bool:
    """Whether a file whose name has no ending is one: by its folder, or by the source of who reads it."""
    if ending_of(path):
        return False
    decodes = re.search(r"Image\.open|imdecode|imread", reader)
    return bool(decodes or _OF_PICTURES.search(os.path.basename(os.path.dirname(path))))


def is_no_data(path: str) -> bool:
    """Whether a file is of settings, code or weights, wherever it lies: no folder, and not data."""
    return ending_of(path) in SETTINGS


def is_cache(path: str) -> bool:
    """Whether a script may have made the file itself of its data: it looks, and does without."""
    ending = ending_of(path)
    if ending in PICTURES | SOUNDS | VIDEOS:  # a sample, also of a set that was prepared in a folder of that name
        return False
    return ending in _CACHES or bool(re.search(r"cache|preproc|processed|tokenized", path, re.IGNORECASE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Paths among a script's arguments: of its data, and of what it writes or loads itself, wherever that lies."""

    data: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()


def is_data(path: str, given: Given, start: str) -> bool:
    """Whether a path would be data on the user's machine: by its words, or since it lies where an argument says.

    `given` are paths of the script's arguments, `start` is the folder that it runs in.
    """
    whole = os.path.abspath(path)
    if is_library(whole) or _OF_A_PACKAGE.search(whole):
        return False
    if _lies_in(whole, given.data):
        return True
    if _lies_in(whole, given.results):
        return False
    parts = _own_parts(whole, start)
    ending = ending_of(path)
    if ending and ending not in DATA and re.fullmatch(r"\.[a-z]\w{0,9}", ending):
        return False
    if any(_OUTPUTS.search(part) for part in parts):
        return False
    return any(_DATA.search(part) for part in parts)


def _own_parts(whole: str, start: str) -> list[str]:
    """Folders and name of a path, without those that the script lies in too: what these are called says nothing of data."""
    cache = os.path.join(os.path.expanduser("~"), ".cache")  # where some keep data that they have downloaded
    own = os.path.relpath(whole, cache if whole.startswith(cache + os.sep) else start)
    return [part for part in PurePath(own).parts if part not in (os.sep, "..")]


def may_be_data(path: str, start: str) -> bool:
    """Whether nothing speaks against it: it is not for results, settings or code."""
    whole = os.path.abspath(path)
    parts = _own_parts(whole, start)
    return not (is_library(whole) or ending_of(path) in SETTINGS or any(_OUTPUTS.search(part) for part in parts))


def _lies_in(path: str, roots: frozenset[str]) -> bool:
    return any(path == root or path.startswith(root + os.sep) for root in roots)


def given_in(arguments: tuple[str, ...]) -> Given:
    """Paths among a script's arguments that are of data, and those where results or checkpoints lie."""
    data, results = [], []
    for at, word in enumerate(arguments):
        name, joined, value = word.partition("=")
        if word.startswith("-") and not joined:
            continue
        before = arguments[at - 1] if at else ""
        option = name if joined else before if before.startswith("-") else ""
        value = value if joined else word
        known = bool(_DATA.search(option) or _FOLDERS.search(option)) if option else os.sep in value
        fits = ending_of(value) in DATA or "." not in os.path.basename(value)
        if not value or value.isdigit():
            continue
        if _OUTPUTS.search(option.lstrip("-")):
            results.append(os.path.abspath(value))
        elif known and fits:
            data.append(os.path.abspath(value))
    return Given(
        data=frozenset(path for path in data if len(path) > 1 and not os.path.exists(path)),
        results=frozenset(path for path in results if len(path) > 1),
    )
