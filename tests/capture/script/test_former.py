"""Names and arguments that libraries had when a script was written."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foretell
from foretell.capture.script.pretend import (
    former,
    former_hub,
    former_names,
    former_packaging,
    former_pictures,
    former_plots,
    former_tensors,
)
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

PARSED = """
    import dataclasses, sys
    import torch
    from torch import nn
    from transformers import AdamW, HfArgumentParser, Trainer, TrainingArguments

    from transformers import deepspeed
    from transformers.modeling_bert import BertLayer
    from transformers.modeling_utils import apply_chunking_to_forward, find_pruneable_heads_and_indices
    from transformers.utils import check_min_version
    from transformers.utils.versions import require_version
    from transformers import BloomTokenizerFast, TextDataset, ViTFeatureExtractor
    from transformers.file_utils import cached_property, is_offline_mode, torch_required
    from transformers.generation_utils import top_k_top_p_filtering
    from transformers.models.bert.tokenization_bert_fast import BertTokenizerFast
    from transformers.trainer_utils import EvaluationStrategy, default_hp_space
    from transformers import BertConfig

    assert BertConfig(output_hidden_states=768, num_hidden_layers=2.0).hidden_size == 768  # types were not checked
    from transformers import BertTokenizerFast

    with open("words.txt", "w") as words:
        words.writelines(f"{word}\\n" for word in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "gpu", "cost"])
    tokenizer = BertTokenizerFast(vocab_file="words.txt", sep_token="[SEP]")
    assert len(tokenizer) == 7 and tokenizer("gpu cost").input_ids == [2, 5, 6, 3]
    assert tokenizer.encode_plus("gpu", "cost", max_length=8, pad_to_max_length=True).token_type_ids == [0] * 3 + [1] * 2 + [0] * 3
    assert tokenizer.batch_encode_plus([("gpu", "cost")])["input_ids"] == [tokenizer.build_inputs_with_special_tokens([5], [6])]
    assert tokenizer.prepare_for_model([5, 6, 6], max_length=4, truncation=True)["input_ids"] == [2, 5, 6, 3]
    assert top_k_top_p_filtering(torch.zeros(2, 9), top_k=3).shape == (2, 9) and EvaluationStrategy("no") == "no"
    import torchvision

    assert torchvision.__version__ >= "0.3.0"
    from transformers.modeling_bert import *

    assert issubclass(BertPreTrainedModel, nn.Module) and ACT2FN  # which came along
    check_min_version("99.0.0.dev0")
    require_version("datasets>=99.0", "pip install datasets")
    assert not deepspeed.is_deepspeed_zero3_enabled() and issubclass(BertLayer, nn.Module)
    heads, columns = find_pruneable_heads_and_indices([0, 2], 3, 2, {0})
    assert heads == {2} and columns.tolist() == [0, 1, 4, 5]

    @dataclasses.dataclass
    class Model:
        width: int = 8
        use_cache: bool = False

    @dataclasses.dataclass
    class Arguments(TrainingArguments):
        cache_dir: str = ""

    model_arguments, arguments = HfArgumentParser((Model, Arguments)).parse_args_into_dataclasses()
    assert model_arguments.width == 16 and arguments.eval_strategy == "no" and arguments.learning_rate == 2e-5
    assert arguments.fsdp_config["transformer_layer_cls_to_wrap"] == ["Layer"]
    TrainingArguments("out", evaluation_strategy="steps", eval_steps=5, group_by_length=True, report_to=None)
    assert Arguments("out", warmup_ratio=0.1, cache_dir="there").cache_dir == "there" and not arguments.overwrite_output_dir
    model = nn.Linear(16, 4).cuda()
    optimizer = AdamW(model.parameters(), lr=arguments.learning_rate, correct_bias=False)
    for step in range(5):
        model(torch.randn(8, 16).cuda()).sum().backward()
        optimizer.step()
"""


def test_arguments_of_older_trainers_are_taken(script: Write) -> None:
    pytest.importorskip("accelerate")
    words = "--output_dir out --width 16 --evaluation_strategy no --learning_rate 2e-5 --warmup_ratio 0.03 "
    words += "--fsdp_transformer_layer_cls_to_wrap Layer --overwrite_output_dir True"
    assert foretell.capture_graph(script(PARSED, arguments=tuple(words.split()))).samples == 8


OWN_TRAINER = """
    import torch
    from torch import nn
    from transformers import BertConfig, Trainer, TrainingArguments
    from transformers.models.bert.modeling_bert import BertPreTrainedModel

    class Model(BertPreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.words = nn.Embedding(config.vocab_size, 8)
            self.init_weights()

        def forward(self, input_ids, labels=None):
            seen = self.get_extended_attention_mask(torch.ones_like(input_ids), input_ids.shape, input_ids.device)
            assert seen.shape == (4, 1, 1, 16) and self.get_head_mask(None, 3) == [None] * 3
            return {"loss": self.words(input_ids).mean() + seen.mean()}

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return model(**inputs)["loss"]

        def training_step(self, model, inputs):
            return super().training_step(model, inputs)

        def _get_train_sampler(self):
            assert self.tokenizer is None
            return torch.utils.data.SequentialSampler(self.train_dataset)

    rows = [{"input_ids": torch.zeros(16, dtype=torch.long), "labels": torch.zeros(16, dtype=torch.long)}] * 64
    arguments = TrainingArguments("out", per_device_train_batch_size=4, max_steps=8)
    Own(model=Model(BertConfig(vocab_size=32)), args=arguments, train_dataset=rows).train()
"""


def test_methods_that_an_older_trainer_had_are_given_what_they_take(script: Write) -> None:
    pytest.importorskip("accelerate")
    graph = foretell.capture_graph(script(OWN_TRAINER))
    assert (graph.samples, graph.facts.parameters) == (4, 256)


def test_classes_derived_from_a_librarys_take_its_former_arguments() -> None:
    """Each dataclass has a maker of its own, and the library is not the last to derive one."""

    @dataclasses.dataclass
    class Arguments:
        eval_strategy: str = "no"

    former_hub._take_former(Arguments)

    @dataclasses.dataclass
    class Others(Arguments):
        margin: float = 0.0

    class Open(Others):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)

    former: dict[str, Any] = {"evaluation_strategy": "steps", "warmup_ratio": 0.1}
    assert Others(margin=0.5, **former) == Others(eval_strategy="steps", margin=0.5)
    assert Arguments(**former) == Arguments(eval_strategy="steps")
    with pytest.raises(TypeError, match="unheard_of"):
        Others(unheard_of=1)  # type: ignore[call-arg]
    assert Open(margin=0.5, **former).eval_strategy == "steps"


def test_a_word_that_became_the_languages_own_is_named(script: Write, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"line 2 .*async=True.*non_blocking"):
        foretell.capture_graph(script("import torch\ntorch.zeros(1).cuda(async=True) 5\n"))


def test_pictures_are_changed_as_by_an_older_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """albumentations dropped names and a module, and takes the two sides of a crop as a pair."""
    inner, library = types.ModuleType("pictures.augmentations"), types.ModuleType("pictures")

    def crop(size: tuple[int, int], scale: tuple[float, float] = (0.08, 1.0), p: float = 1.0) -> tuple[object, ...]:
        return size, scale, p

    class Pixels: ...

    class Noise(Pixels):
        def __init__(self, std_range: tuple[float, float] = (0.2, 0.4), p: float = 0.5) -> None:
            self.set = (*std_range, p)

    vars(library).update(HorizontalFlip=lambda p: p, RandomResizedCrop=crop, ImageOnlyTransform=Pixels, Noise=Noise)
    monkeypatch.setitem(sys.modules, "pictures.augmentations", inner)
    monkeypatch.setitem(sys.modules, "pictures.augmentations.transforms", inner)  # is removed again at the end
    former_pictures._albumentations(library)
    former = sys.modules["pictures.augmentations.transforms"]
    assert former.Flip(always_apply=False, p=0.25) == 0.25
    assert former.RandomResizedCrop(64, 32, p=0.5) == ((64, 32), (0.08, 1.0), 0.5)
    assert former.RandomResizedCrop(height=64, width=32, scale=(0.5, 1)) == ((64, 32), (0.5, 1), 1.0)
    assert former.RandomResizedCrop((64, 32), (0.5, 1)) == ((64, 32), (0.5, 1), 1.0)
    assert former.Noise(10, p=0.25).set == (0.2, 0.4, 0.25)  # it changes no size, however it is set
    assert former.Noise((0.1, 0.3)).set == (0.1, 0.3, 0.5)


def test_plots_are_made_as_with_an_older_matplotlib() -> None:
    class Map:
        def resampled(self, lut: int) -> tuple[str, int]:
            return "resampled", lut

    colours: Any = types.ModuleType("matplotlib.cm")
    colours._colormaps = {"magma": (magma := Map()), "viridis": Map()}
    former_plots.colours(colours)
    former_plots.has_everything(colours)
    assert colours.get_cmap("magma") is magma is colours.get_cmap(magma)
    assert colours.get_cmap(lut=16) == ("resampled", 16)
    colours.dropped_since("whatever")
    canvas: Any = types.ModuleType("matplotlib.backends.backend_agg")
    points = np.arange(8, dtype=np.uint8).reshape(1, 2, 4)
    canvas.FigureCanvasAgg = type("Canvas", (), {"buffer_rgba": lambda self: memoryview(points)})
    former_plots.canvas(canvas)
    assert canvas.FigureCanvasAgg().tostring_rgb() == bytes((0, 1, 2, 4, 5, 6))

    class Axes:
        def imshow(self, x: Any) -> str:
            if x.shape[-1] != 3:
                raise TypeError(f"Invalid shape {x.shape} for image data")
            return "drawn"

    axes: Any = types.ModuleType("matplotlib.axes")
    axes.Axes = Axes
    former_plots.pictures(axes)
    assert [Axes().imshow(np.zeros((2, 2, count))) for count in (3, 71)] == ["drawn", None]


def test_a_module_that_imports_its_parts_as_they_are_asked_for_is_not_asked() -> None:
    """transformers 4.46 asks for its integrations while what those import is half imported."""

    class Lazy(types.ModuleType):
        def __dir__(self) -> list[str]:
            return [*super().__dir__(), "there"]

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    module = Lazy("lazy")
    former_names._add_all({"there": 1, "gone": 2}, module)
    assert "there" not in vars(module)
    assert module.gone == 2


def test_tensors_are_taken_as_they_were(script: Write) -> None:
    graph = foretell.capture_graph(
        script("""
        import torch
        from torch import nn

        for device in ("cpu", "cuda"):
            one = torch.ones(3, 4, device=device)
            ones = one.t().eq(one.t())
            assert ones[:4].view(-1).shape == (12,)
            assert (1 - ones).dtype is torch.uint8 and (ones - ones).shape == (4, 3)
            assert one.masked_fill(one.byte(), 0.0).shape == (3, 4)
            assert isinstance(one.sum().data[0], float) and float(one.sum().data.cpu().numpy()[0]) >= 0
            assert nn.BCELoss()(torch.rand(4, 1, device=device), torch.rand(4, device=device)).dim() == 0
            assert torch.irfft(torch.rfft(one, 2), 2, signal_sizes=(3, 4)).shape == (3, 4)
            assert torch.stft(torch.rand(400, device=device), 64).shape[-1] == 2
            try:
                one.view(5)
            except (RuntimeError, ValueError) as error:
                assert "12" in str(error) or "5" in str(error)
        model = nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", verbose=True)
        steps = torch.optim.lr_scheduler.StepLR(optimizer, 2, verbose=False)
        for _ in range(4):
            loss = model(torch.randn(6, 8).cuda()).pow(2).mean()
            loss.backward()
            optimizer.step()
            steps.step()
            print(loss.data[0])
        """)
    )
    assert graph.samples == 6


def test_functions_of_autograd_may_be_objects(script: Write) -> None:
    graph = foretell.capture_graph(
        script("""
        import cPickle as pickle
        import torch
        from itertools import izip
        from torch import nn

        class Sign(torch.autograd.Function):
            def __init__(self, scale):
                super().__init__()
                self.scale = scale

            def forward(self, x):
                self.save_for_backward(x)
                return self.scaled(x.sign())

            def backward(self, gradient):
                (x,) = self.saved_tensors
                return self.scaled(gradient * (x.abs() < 1).float())

            def scaled(self, x):
                return x * self.scale

        import timm
        assert timm.models.registry.register_model and not hasattr(timm.models, "nowhere")
        assert pickle.loads(pickle.dumps(3)) == 3 and list(izip([1], [2])) == [(1, 2)]
        import random
        assert sorted(random.sample({1, 2}, 2)) == [1, 2]
        model = nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in xrange(5):
            Sign(0.5)(model(torch.randn(6, 8).cuda())).sum().backward()
            optimizer.step()
        """)
    )
    assert graph.samples == 6
    assert [op.signature.name for op in graph.ops if op.phase == "backward"].count("aten.mul") >= 2


OLD = """
    import time
    import xml.etree.cElementTree
    import numpy as np, torch
    from numpy import random
    from scipy.misc import imresize
    from torch import nn
    from torch.optim import lr_scheduler
    import torchvision

    assert time.clock() >= 0 and np.fromstring(b"ab", dtype=np.uint8).tolist() == [97, 98]
    assert random.choice((None, (0.1, None))) is not 3 and np.array([[1], [1, 2]]).dtype == object
    assert imresize(np.zeros((8, 6, 3), np.uint8), (4, 3)).shape == (4, 3, 3)
    try:
        import pandas as pd
    except ImportError:
        pd = None
    if pd is not None:
        totals = pd.DataFrame({"loss": [1.0, 2.0]})
        totals["loss"].values[:] = 0
        assert totals["loss"][1] == 0
        assert totals.ix[1, 0] == totals.ix[1, "loss"] == 0
        days = pd.to_datetime(["2024-01-08", "2024-12-31"])
        assert days.weekofyear.to_numpy().tolist() == pd.Series(days).dt.week.tolist() == [2, 1]
    from torchvision.models.resnet import model_zoo
    assert callable(model_zoo.load_url)
    from PIL import Image, ImageFilter
    assert Image.new("RGB", (8, 6)).filter(ImageFilter.GaussianBlur(radius=0.1 + torch.rand(1))).size == (8, 6)

    class Endless(torch.utils.data.Sampler):
        def __init__(self, dataset):
            super().__init__(dataset)

    Endless([1, 2])
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    lr_scheduler.ReduceLROnPlateau(optimizer, "min", verbose=True)

    class Own(lr_scheduler._LRScheduler):
        def __init__(self, optimizer, last_epoch=-1, verbose=False):
            super().__init__(optimizer, last_epoch, verbose)

        def get_lr(self):
            return [0.1]

    Own(optimizer)
    torchvision.utils.save_image(torch.rand(2, 3, 8, 8), "x.png", range=(-1, 1), normalize=True)
    for step in range(5):
        x = torch.randn(8, 4).cuda()
        delta = torch.zeros(8, 4).cuda().requires_grad_()  # an attack, whose gradients of the model are not kept
        model(x + delta).sum().backward()
        optimizer.zero_grad()
        loss = model(x + delta.grad).sum()
        loss.backward()
        optimizer.step()
        print(loss.data[0])
"""


def test_names_and_arguments_of_older_libraries_are_taken(script: Write) -> None:
    graph = foretell.capture_graph(script(OLD))
    assert (graph.samples, graph.grad_accumulation) == (8, 1)


def test_the_first_letters_of_a_version_are_no_earlier_one() -> None:
    module = types.ModuleType("library")
    module.__version__ = "0.28.0"  # type: ignore[attr-defined]
    former._versions(module)
    version = module.__version__
    assert float(version[:3]) > 0.7
    assert (version[:4], version >= "0.3") == ("0.28", True)


def test_a_convolution_goes_along_as_many_dimensions_as_its_kernel_has(script: Write) -> None:
    text = """
        import torch
        model = torch.nn.Conv1d(4, 6, kernel_size=(1, 2), dilation=2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            made = model(torch.randn(8, 4, 5, 9).cuda())
            assert made.shape == (8, 6, 5, 7)
            made.sum().backward()
            optimizer.step(); optimizer.zero_grad()
    """
    assert foretell.capture_graph(script(text)).facts.parameters == 4 * 6 * 2 + 6


def test_tensors_of_one_number_in_a_list_are_numbers(script: Write) -> None:
    """torch takes what has a Python `__getitem__` for a list, and so did every script once `loss[0]` worked."""
    graph = foretell.capture_graph(
        script("""
        import torch

        pad = torch.tensor([7])[0]
        model = torch.nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            assert torch.tensor([pad] * 3, dtype=torch.int64).shape == (3,)
            loss = model(torch.randn(6, 8).cuda()).pow(2).mean()
            assert torch.Tensor([loss.item(), pad]).cuda().shape == (2,)
            loss.backward()
            optimizer.step()
        """)
    )
    assert graph.samples == 6


def test_adam_takes_whole_numbers_as_betas() -> None:
    took: list[Any] = []
    init = former_tensors._with_whole_betas(lambda self, params, *args, **how: took.append((args, how)))
    init(None, [], 1e-3, [0, 0.9], 1e-8)
    init(None, [], lr=1e-3, betas=(0, 0.99))
    init(None, [], 1e-3)
    assert took == [((1e-3, (0.0, 0.9), 1e-8), {}), ((), {"lr": 1e-3, "betas": (0.0, 0.99)}), ((1e-3,), {})]
    assert all(isinstance(beta, float) for beta in (*took[0][0][1], *took[1][1]["betas"]))


def test_what_is_asked_of_packages_is_answered_without_setuptools() -> None:
    there = former_packaging.resources()
    assert there.parse_version("1.10") > there.parse_version("1.9")
    assert there.packaging.version.parse("2") is not None
    assert there.get_distribution("torch>=1").version == torch.__version__
    assert there.require("torch") == []
    assert Path(there.resource_filename("json", "decoder.py")).is_file()
    assert there.resource_exists("json", "decoder.py")
    (needed,) = there.parse_requirements("numpy>=1.2  # for arrays\n\n# nothing\n")
    assert needed.name == "numpy"
    with pytest.raises(there.DistributionNotFound):
        there.get_distribution("no-such-package")
