"""Names and arguments that Hugging Face's libraries had when a script was written, as what they became."""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from foretell.capture.script.imports import once_imported
from foretell.capture.script.session import Session

_RENAMED: Final = {
    "evaluation_strategy": "eval_strategy",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "no_cuda": "use_cpu",
    "tokenizer": "processing_class",
    "vocab_file": "vocab",
    "merges_file": "merges",
}
# They changed neither the step nor its memory; newer versions refuse them.
_GONE: Final = frozenset(
    """overwrite_output_dir logging_dir push_to_hub_token push_to_hub_model_id push_to_hub_organization fp16_opt_level
    fp16_backend half_precision_backend save_safetensors past_index jit_mode_eval use_ipex use_mps_device mp_parameters
    tpu_num_cores tpu_metrics_debug include_inputs_for_metrics dispatch_batches split_batches evaluate_during_training
    ray_scope xpu_backend no_cuda use_legacy_prediction_loop include_tokens_per_second eval_use_gather_object
    include_num_input_tokens_seen group_by_length length_column_name warmup_ratio torchdynamo sharded_ddp
    fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap adafactor""".split()
)
_LAYER: Final = "fsdp_transformer_layer_cls_to_wrap"
_MEANT: Final[dict[str, Any]] = {}  # by arguments that are settings of others now


def install(session: Session) -> None:
    _MEANT.clear()
    once_imported("transformers.training_args", _training_arguments)
    once_imported("transformers.trainer", _trainer)
    once_imported("transformers.hf_argparser", _parse_former)
    once_imported("transformers", _transformers)
    once_imported("transformers.optimization", lambda module: _add(module, "AdamW", AdamW))
    once_imported("transformers.tokenization_utils_tokenizers", _files_of_words)
    once_imported("peft", _peft)
    once_imported("huggingface_hub.dataclasses", _take_other_types)


def _add(module: Any, name: str, value: Any) -> None:
    try:
        getattr(module, name)
    except (AttributeError, ImportError):
        setattr(module, name, value)


class AdamW(torch.optim.AdamW):
    """As transformers had it."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-6,
                 weight_decay: float = 0.0, correct_bias: bool = True, no_deprecation_warning: bool = False) -> None:  # fmt: skip
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, foreach=False)


def _transformers(module: Any) -> None:
    _add(module, "AdamW", AdamW)
    _add(module, "is_torch_tpu_available", lambda *args, **kwargs: False)
    for former, name in {
        "AutoModelWithLMHead": "AutoModelForCausalLM",
        "AutoModelForVision2Seq": "AutoModelForImageTextToText",
    }.items():
        _add_late(module, former, name)
    once_imported("transformers.utils", lambda utils: _add(utils, "send_example_telemetry", _nothing))
    once_imported("transformers.utils", lambda utils: _add(utils, "is_torch_tpu_available", lambda *a, **k: False))


def _add_late(module: Any, former: str, name: str) -> None:
    """Of a module that imports its parts as they are asked for: not before."""
    kind: Any = type(module)
    if former in module.__all__:
        return
    find: Callable[[Any, str], Any] = kind.__getattr__

    def getattr_(self: Any, wanted: str) -> Any:
        return find(self, name if wanted == former else wanted)

    kind.__getattr__ = getattr_


def _peft(module: Any) -> None:
    if hasattr(module, "prepare_model_for_kbit_training"):
        _add(module, "prepare_model_for_int8_training", module.prepare_model_for_kbit_training)


def _files_of_words(module: Any) -> None:
    """Tokenizers were made with the files of their words by name; a list of them is read here, where it may be stood in for."""
    if hasattr(module, "TokenizersBackend"):
        _take_former(module.TokenizersBackend)


def _take_other_types(module: Any) -> None:
    """Settings of a model were not checked for their types: a width for a switch was as good as True."""
    if hasattr(module, "type_validator"):
        module.type_validator = _nothing


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _training_arguments(module: Any) -> None:
    kind = module.TrainingArguments
    _take_former(kind)
    for name in _GONE:
        _add(kind, name, 0.0 if name == "warmup_ratio" else None)  # scripts read them, too
    check = kind.__post_init__

    def post_init(self: Any) -> None:
        self.report_to = "none"  # trackers are quiet; it was None once
        if _MEANT.get(_LAYER) and not self.fsdp_config:
            self.fsdp_config = {"transformer_layer_cls_to_wrap": [_MEANT[_LAYER]]}
        if str(_MEANT.get("adafactor")).lower() == "true":
            self.optim = "adafactor"
        check(self)

    kind.__post_init__ = post_init


def _trainer(module: Any) -> None:
    _take_former(module.Trainer)
    make = module.Trainer.__init__

    @functools.wraps(make)
    def init(self: Any, model: Any = None, *args: Any, **given: Any) -> None:
        """Devices that a model lies on by number, which torch looks for without a name."""
        if places := getattr(model, "hf_device_map", None):
            model.hf_device_map = {part: f"cuda:{at}" if isinstance(at, int) else at for part, at in places.items()}
        make(self, model, *args, **given)

    module.Trainer.__init__ = init


def _take_former(root: Any) -> None:
    """Let a class, and whatever is derived from it, be made with keywords that it had: a dataclass has a maker of its own."""

    def new(cls: Any, *args: Any, **given: Any) -> Any:
        for kind in cls.__mro__:
            if issubclass(kind, root) and "__init__" in vars(kind) and "_takes_former" not in vars(kind):
                _take(kind)
        return super(root, cls).__new__(cls)

    root.__new__ = new


def _take(kind: Any) -> None:
    make = kind.__init__
    known = inspect.signature(make).parameters
    kind._takes_former = True
    is_open = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())

    @functools.wraps(make)
    def init(self: Any, *args: Any, **given: Any) -> None:
        if is_open:  # what it hands on is taken there
            make(self, *args, **dict(_taken(key, value, known, given) for key, value in given.items()))
            return
        _MEANT.update((key, value) for key, value in given.items() if not _name(key, known))
        make(self, *args, **{_name(key, known): value for key, value in given.items() if _name(key, known)})

    kind.__init__ = init


def _taken(key: str, value: Any, known: Any, given: Any) -> tuple[str, Any]:
    new = _RENAMED.get(key, key)
    if key in known or new not in known or new in given or value is None:
        return key, value
    if new == "vocab" and str(value).endswith(".txt"):
        with open(value, encoding="utf-8") as lines:
            return new, {line.rstrip("\n"): at for at, line in enumerate(lines)}
    return new, value


def _name(key: str, known: Any) -> str:
    """What a keyword became; empty where it is gone."""
    if key in known:
        return key
    if _RENAMED.get(key) in known:
        return _RENAMED[key]
    return "" if key in _GONE else key


def _parse_former(module: Any) -> None:
    """The same on the command line; and what a script added itself, and has been the library's since, is the script's."""
    parse, make = module.HfArgumentParser.parse_known_args, module.HfArgumentParser.__init__

    def parse_known_args(self: Any, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        known = {action.dest: None for action in self._actions}
        found, rest = parse(self, _renamed(words, known), namespace)
        return _Namespace(**vars(found)), rest

    module.HfArgumentParser.parse_known_args = parse_known_args
    module.HfArgumentParser.__init__ = lambda self, *args, **how: make(
        self, *args, **{"conflict_handler": "resolve", **how}
    )


class _Namespace(argparse.Namespace):
    """Each class of arguments takes its own out; one may be in two."""

    def __delattr__(self, name: str) -> None:
        vars(self).pop(name, None)


def _renamed(words: list[str], known: Any) -> list[str]:
    kept: list[str] = []
    dropping, key = False, ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            key = flag.replace("-", "_")
            name = _name(key, known)
            dropping = not name
            if dropping:
                _MEANT[key] = value or "true"
            if name:
                kept.append(word if name == key else f"--{name}{equals}{value}")
        elif not dropping:
            kept.append(word)
        else:
            _MEANT[key] = word
    return kept
