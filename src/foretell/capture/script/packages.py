"""What a user is told of a package that a script imports and this machine lacks: which, where, and how to get it."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from foretell.capture.reads import is_library
from foretell.errors import WorkloadError
from foretell.sources.scripts import Script

# Where a package is installed under another name than it is imported by.
_INSTALLED_AS: Final = {
    "cv2": "opencv-python", "sklearn": "scikit-learn", "skimage": "scikit-image", "PIL": "pillow", "yaml": "pyyaml",
    "attr": "attrs", "bs4": "beautifulsoup4", "Levenshtein": "python-Levenshtein", "pycocotools": "pycocotools",
    "tensorboard_logger": "tensorboard-logger", "google": "protobuf", "git": "gitpython", "dateutil": "python-dateutil",
    "dotenv": "python-dotenv", "faiss": "faiss-cpu", "umap": "umap-learn", "jwt": "pyjwt", "OpenSSL": "pyopenssl",
    "pytorch_lightning": "pytorch-lightning", "torch_geometric": "torch-geometric", "sentence_transformers":
    "sentence-transformers", "segmentation_models_pytorch": "segmentation-models-pytorch", "efficientnet_pytorch":
    "efficientnet-pytorch", "fairseq": "fairseq", "mmcv": "mmcv", "detectron2":
    "'git+https://github.com/facebookresearch/detectron2'", "clip": "'git+https://github.com/openai/CLIP'", "ignite":
    "pytorch-ignite", "catalyst": "catalyst", "rdkit": "rdkit", "Bio": "biopython", "cairosvg": "CairoSVG", "MeCab":
    "mecab-python3", "jieba": "jieba", "zmq": "pyzmq", "psycopg2": "psycopg2-binary", "ale_py": "ale-py", "mujoco_py":
    "mujoco-py", "pytorch_msssim": "pytorch-msssim", "lpips": "lpips", "ruamel": "ruamel.yaml", "parrots": "parrots",
}  # fmt: skip
_LISTS: Final = ("requirements*.txt", "pyproject.toml", "setup.py", "environment*.y*ml", "*env*.y*ml")  # in this order
# Names that these lack decide what a step is.
ESSENTIAL: Final = frozenset(
    "torch numpy transformers diffusers peft trl accelerate deepspeed lightning pytorch_lightning timm torchvision".split()
)
_list, _is_folder = os.listdir, os.path.isdir  # what is there, whatever a script is shown
_COMPILED: Final = re.compile(r"(^_C$|_cuda$|_ext$|_cpp$|_kernel$|_kernels$|_op$|_ops$|^_ext|\._C$)")
_BUILDS: Final = re.compile(r"ext_modules|Extension\(")
_FROM: Final = re.compile(r"cannot import name '([^']+)' from (?:partially initialized module )?'([^']+)'")


class MissingError(WorkloadError):
    """A package that is missing is used."""


def on_missing_package(script: Script, error: ImportError) -> str | None:
    """In words; None where an import failed for another reason."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _absent(script, error.name, error)
    if found := _FROM.search(str(error)):
        return _without(script, found[1], found[2], error)
    return None


def empty_submodule(script: Script, name: str) -> str:
    """The folder of a package of that name which is a git submodule that was not fetched; empty where there is none."""
    top = Path(os.path.abspath(script.path)).parent
    for root in (top, *list(top.parents)[:3], Path.cwd()):
        listed = root / ".gitmodules"
        if not listed.is_file():
            continue
        text = listed.read_text(encoding="utf-8", errors="replace")
        for found in re.finditer(r"^\s*path\s*=\s*(\S+)", text, re.MULTILINE):
            if name in Path(found[1]).parts and not any((root / found[1]).glob("*")):
                return found[1]
    return ""


def _absent(script: Script, name: str, error: ImportError) -> str:
    package = distribution(name)
    line = _line_of(error)
    happened = f"{script.path} {'imports' if 'import' in line else 'uses'} {name}{line}"
    if package != name and _is_there(package):
        version = _version(package)
        if version is None:
            if (folder := _built_in(name)) is not None:
                return (
                    f"{happened}, which is built from the repository's own code, in {folder}. Build it, as its README says, or with: "
                    f"cd {folder} && python setup.py build_ext --inplace."
                )
            return f"{happened}, which is no part of {package}. Put it there, or run the script from where it finds it."
        return (
            f"{happened}, which {package} {version} has not. Install the version that the script was written for: "
            f"pip install '{_INSTALLED_AS.get(package, package)}<{version}'."
        )
    if _COMPILED.search(name):
        return (
            f"{happened}, which is not installed: an extension that is compiled for a GPU. Say what its functions cost and "
            f"return in a file of lines like foretell.opaque('{name}.FUNCTION', outputs=lambda …: torch.empty(…), flops=…), "
            "and give that with --opaque: see docs/guide/scripts.md."
        )
    return (
        f"{happened}, which is not installed where Foretell runs. Install it there: {_install(script, package)}; it needs no "
        f"GPU to be imported. If it does, declare what is used of it with --opaque: see docs/guide/scripts.md."
    )


def _built_in(name: str) -> str | None:
    """The folder of one of the script's own packages that has a program which builds an extension, if the module lies there."""
    first, *parts = name.split(".")
    for root in map(Path, getattr(sys.modules.get(first), "__path__", ())):
        for length in range(len(parts), -1, -1):
            folder = root.joinpath(*parts[:length])
            if (folder / "setup.py").is_file() and _BUILDS.search((folder / "setup.py").read_text(errors="replace")):
                return os.path.relpath(folder)
    return None


def _without(script: Script, name: str, module: str, error: ImportError) -> str | None:
    package = module.partition(".")[0]
    if (version := _version(package)) is None:
        return None  # the script's own modules
    return (
        f"{script.path} imports {name} from {module}{_line_of(error)}, which {package} {version} has not. Install the version "
        f"that the script was written for: {_install(script, package, below=version)}."
    )


def _install(script: Script, package: str, below: str = "") -> str:
    """The command; a repository's own list of what it needs comes first."""
    named = _INSTALLED_AS.get(package, package.replace(".", "-"))
    for file, words in _lists(script):
        name = re.escape(named.lower().replace("_", "-"))
        if found := re.search(rf"(?<![\w.-])(?:[\w.-]{{0,64}}[.-])?{name}\b[\w.-]*", words):
            return f"pip install -r {os.path.relpath(file)}" if file.suffix == ".txt" else f"pip install {found[0]}"
    return f"pip install '{named}<{below}'" if below else f"pip install {named}"


def is_listed(script: Script, package: str) -> bool:
    """Whether the script's repository lists a package as one that it needs."""
    named = re.compile(rf"\b{re.escape(package.lower().replace('_', '-'))}\b")
    return any(named.search(words) for _, words in _lists(script))


def _lists(script: Script) -> Iterator[tuple[Path, str]]:
    """Files in which a repository says what it needs, with their words in one way of writing."""
    folder = Path(os.path.abspath(script.path)).parent
    for pattern in _LISTS:
        for place in dict.fromkeys((folder, folder.parent, Path.cwd())):
            for name in sorted(fnmatch.filter(_list(place) if _is_folder(place) else (), pattern)):
                file = place / name
                yield file, file.read_text(encoding="utf-8", errors="replace").lower().replace("_", "-")


def distribution(name: str) -> str:
    """What is installed to have a module: the first part of its name, or, of what several packages share, the first two."""
    parts = name.split(".")
    return ".".join(parts[: 2 if is_shared(sys.modules.get(parts[0])) else 1])


def is_shared(module: Any) -> bool:
    """A package without a file of its own, into which several distributions put their parts (`google`, `nvidia`)."""
    folders = list(getattr(module, "__path__", ()))
    return bool(folders) and getattr(module, "__file__", None) is None and all("site-packages" in f for f in folders)


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _version(package: str) -> str | None:
    """Of what is installed under a name; a package may be part of a distribution that is called otherwise."""
    named = [_INSTALLED_AS.get(package, package), *importlib.metadata.packages_distributions().get(package, ())]
    for name in named:
        try:
            return importlib.metadata.version(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
    return None


def _line_of(error: BaseException) -> str:
    """The line of the script, or of what it imports, that an error comes from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    return f" in line {frames[-1].lineno} of {frames[-1].filename} ({frames[-1].line})" if frames else ""
