"""Stand-ins for data sets and checkpoints that are not on this machine (`--fake-data`).

What is there is read. What is not has the shapes that the script's own classes, transforms, tokenizer or configuration
give it: a picture goes through the script's transforms, a model is built from its configuration.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Final

import numpy as np
import torch

from foretell.capture.script.imports import once_imported
from foretell.capture.script.pretend.missing_files import PICTURE, Note, or_else
from foretell.capture.script.pretend.sets import hub
from foretell.capture.script.session import Session
from foretell.errors import ForetellError, WorkloadError

_SAMPLES: Final = 2**16
_FEW_WORDS: Final = 64  # special ones alone
# Size and classes of sets that torchvision downloads: (height, width, channels or 0, classes).
_SMALL_PICTURES: Final = {
    "CIFAR10": (32, 32, 3, 10), "CIFAR100": (32, 32, 3, 100), "MNIST": (28, 28, 0, 10), "FashionMNIST": (28, 28, 0, 10),
    "KMNIST": (28, 28, 0, 10), "QMNIST": (28, 28, 0, 10), "EMNIST": (28, 28, 0, 47),
}  # fmt: skip


def install(session: Session) -> None:
    """Stand in for what is missing, where the user wants that."""
    if not session.script.fake_data:
        return

    note = session.stand_in
    hub.install(session)
    once_imported("torchvision.datasets", lambda module: _pictures(module, note))
    once_imported("transformers", lambda module: _pretrained(module, note))


def _pictures(datasets: Any, note: Note) -> None:
    """A folder of pictures, and sets that would be downloaded."""
    from PIL import Image

    folder = datasets.DatasetFolder.__init__
    signature = inspect.signature(folder)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            folder(self, *args, **kwargs)
        except FileNotFoundError:
            given = signature.bind(self, *args, **kwargs).arguments
            self.root, self.transforms = given["root"], None
            self.transform, self.target_transform = given.get("transform"), given.get("target_transform")
            note(f"pictures of {self.root}")
            self.classes = [f"n{i:08}" for i in range(1000)]
            self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
            self.loader = lambda path: Image.new("RGB", PICTURE)
            self.extensions = (".jpg",)
            self.samples = self.imgs = [(f"{i}.jpg", i % 1000) for i in range(_SAMPLES)]
            self.targets = [i % 1000 for i in range(_SAMPLES)]

    datasets.DatasetFolder.__init__ = init
    for name, (height, width, channels, classes) in _SMALL_PICTURES.items():
        _small_pictures(getattr(datasets, name), (height, width) + ((channels,) if channels else ()), classes, note)


def _small_pictures(kind: Any, shape: tuple[int, ...], classes: int, note: Note) -> None:
    make = kind.__init__
    signature = inspect.signature(make)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs).arguments
        given = bound.pop("kwargs", {}) | bound | {"download": False}  # some hand keywords on to their parent
        try:
            make(**given)
        except (RuntimeError, FileNotFoundError):
            note(f"pictures of {kind.__name__}")
            self.root, self.train, self.transforms = given["root"], given.get("train", True), None
            self.transform, self.target_transform = given.get("transform"), given.get("target_transform")
            self.classes = [str(i) for i in range(classes)]
            if not isinstance(getattr(type(self), "class_to_idx", None), property):
                self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
            count = 50_000 if self.train else 10_000
            targets = [i % classes for i in range(count)]
            if len(shape) == 2:
                self.data, self.targets = torch.zeros(count, *shape, dtype=torch.uint8), torch.tensor(targets)
            else:
                self.data, self.targets = np.zeros((count, *shape), np.uint8), targets

    if "__init__" in vars(kind) or kind.__mro__[1].__name__ not in _SMALL_PICTURES:
        kind.__init__ = init


def _pretrained(transformers: Any, note: Note) -> None:
    """Models, configurations and tokenizers by name: built from a configuration that is here, or that Foretell knows."""
    or_else(
        transformers.AutoConfig, "from_pretrained",
        lambda name, *args, **kwargs: _known_config(str(name), note), (OSError, ValueError, ForetellError),
    )  # fmt: skip
    base = transformers.PreTrainedModel
    load: Any = base.from_pretrained.__func__

    def from_pretrained(cls: Any, name: Any, /, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        try:
            return load(cls, name, *args, **({"config": config} if config is not None else {}), **kwargs)
        except (OSError, ValueError, ForetellError):
            config = config or transformers.AutoConfig.from_pretrained(name)
            for key in [key for key in kwargs if hasattr(config, key)]:
                setattr(config, key, kwargs[key])
            note(f"weights of {name}")
            model = cls(config)
            dtype = kwargs.get("dtype") or kwargs.get("torch_dtype")
            dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
            return model if dtype is None else model.to(dtype)

    base.from_pretrained = classmethod(from_pretrained)
    load_tokenizer = transformers.AutoTokenizer.from_pretrained

    def tokenizer(name: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            return _with_words(load_tokenizer(name, *args, **kwargs))
        note(f"tokenizer of {name}")
        return _letters(transformers, transformers.AutoConfig.from_pretrained(name))

    transformers.AutoTokenizer.from_pretrained = tokenizer
    load_processor = transformers.AutoProcessor.from_pretrained

    def processor(name: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            return _with_words(load_processor(name, *args, **kwargs))
        return tokenizer(name, *args, **kwargs)  # which it is for a model of text

    transformers.AutoProcessor.from_pretrained = processor


def _with_words(loaded: Any) -> Any:
    """A tokenizer whose files are not here may come without its vocabulary."""
    words = getattr(getattr(loaded, "tokenizer", loaded), "get_vocab", lambda: range(_FEW_WORDS))()
    if len(words) < _FEW_WORDS:
        raise WorkloadError(f"a tokenizer of {len(words)} words")
    return loaded


def _known_config(name: str, note: Note) -> Any:
    from foretell.sources.named import huggingface

    known = huggingface.architectures().get(name.rpartition("/")[2].lower())
    if known is None:
        raise WorkloadError(
            f"the script loads {name!r}, which is not on this machine, and Foretell does not know its configuration. Put its "
            "config.json into a folder and give the script that folder's path, or download it before."
        )
    note(f"configuration of {name}")
    config = known.configured()
    config._name_or_path = name
    config.architectures = config.architectures or [known.model_class.__name__]
    return config


def _letters(transformers: Any, config: Any) -> Any:
    """A tokenizer of the model's vocabulary, a token for each letter."""
    import tokenizers

    special = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    letters = [chr(i) for i in range(32, 127)]
    size = int(getattr(config.get_text_config(), "vocab_size", 32000))
    words = special + letters + [f"<{i}>" for i in range(size - len(special) - len(letters))]
    plain = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words[:size])}, unk_token="<unk>")
    )
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        cls_token="<s>", sep_token="</s>", mask_token="<mask>", model_max_length=getattr(config, "max_position_embeddings", 512),
    )  # fmt: skip
