"""Named architectures: a few of each library captured, and what every one of them takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from foretell.errors import SourceError
from foretell.graph import Graph
from foretell.sources import named as zoo
from foretell.sources.named.optimizers import OPTIMIZERS, optimizer_named
from foretell.sources.resolve import find_function, load_workload
from foretell.sources.settings import settings_of

Capture = Callable[..., Graph]
STEP_SETTINGS = {"batch", "precision", "optimizer", "grad_accumulation", "clip_grad_norm", "compile"}


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("timm/resnet18", {"image_size": "64", "channels_last": "true"}),
        ("timm/vit_tiny_patch16_224", {"image_size": "64", "checkpointing": "true"}),
        ("torchvision/resnet18", {"image_size": "64"}),
        ("torchvision/googlenet", {"image_size": "64"}),
        ("torchvision/r3d_18", {"image_size": "32", "frames": "4"}),
        ("torchvision/lraspp_mobilenet_v3_large", {"image_size": "64"}),
        ("torchvision/ssdlite320_mobilenet_v3_large", {"image_size": "64"}),
        ("hf/gpt2", {"seq": "16", "layers": "2"}),
        ("hf/llama-small", {"seq": "16", "layers": "2", "precision": "amp-bf16"}),
        ("hf/mixtral-8x7b", {"seq": "16", "layers": "1"}),
        ("hf/deepseek-v2-lite", {"seq": "16", "layers": "2"}),
        ("hf/bert-base", {"seq": "16", "layers": "2"}),
        ("hf/t5-small", {"seq": "16", "target_seq": "8"}),
        ("hf/whisper-tiny", {"seq": "8"}),
        ("hf/patchtst-ett", {}),
        ("hf/mamba-130m", {"seq": "4", "layers": "2"}),
    ],
)
def test_a_training_step_is_captured(source: str, settings: dict[str, str], capture_in_child: Capture) -> None:
    graph = capture_in_child(source, batch="2", **settings)
    assert graph.name == source.partition("/")[2]
    assert graph.samples == 2
    assert {op.phase for op in graph.ops} == {"forward", "backward", "optimizer"}


def test_inference_has_neither_loss_nor_optimizer(capture_in_child: Capture) -> None:
    graph = capture_in_child("hf/gpt2", batch="2", seq="16", layers="2", optimizer="none")
    assert {op.phase for op in graph.ops} == {"forward"}
    assert not [op for op in graph.ops if "nll_loss" in op.signature.target]


@pytest.mark.parametrize(("fast_norm", "dtype"), [("false", "float32"), ("true", "float16")])
def test_fast_norms_stay_in_half_precision(fast_norm: str, dtype: str, capture_in_child: Capture) -> None:
    settings = {"batch": "2", "image_size": "32", "precision": "amp-fp16", "optimizer": "none"}
    graph = capture_in_child("timm/convnext_atto", fast_norm=fast_norm, **settings)
    norms = [op.signature.inputs[0].dtype for op in graph.ops if op.signature.name == "aten.native_layer_norm"]
    assert norms
    assert set(norms) == {dtype}


def test_experts_share_the_tokens(capture_in_child: Capture) -> None:
    graph = capture_in_child("hf/mixtral-8x7b", batch="2", seq="16", layers="1")
    assert any("grouped_mm" in op.signature.target for op in graph.ops)
    assert any("uniform" in caveat.text for caveat in graph.caveats)


def test_boxes_are_suppressed_and_aligned() -> None:
    import torch

    zoo.library("torchvision")
    from torchvision.ops import nms, roi_align

    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])
    assert nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist() == [1, 2]
    image = torch.randn(2, 3, 16, 16, device="meta", requires_grad=True)
    regions = roi_align(image, torch.zeros(5, 5, device="meta"), output_size=7)
    assert regions.shape == (5, 3, 7, 7)
    regions.sum().backward()
    assert image.grad is not None
    assert image.grad.shape == image.shape


def test_a_configuration_file(tmp_path: Path, capture_in_child: Capture) -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "torch_dtype": "bfloat16",
    }  # fmt: skip
    path = tmp_path / "my-model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config))
    graph = capture_in_child(str(path), batch="2", seq="32")
    assert graph.name == "my-model"
    assert graph.tokens == 64
    path.write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    assert "layers" in settings_of(find_function(str(path)))  # a bare encoder trains as the masked language model it is


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read as a configuration"),
        ("{}", "no configuration that is known here: it is empty"),
        ('{"model_type": "homemade"}', "no trainable architecture for model_type 'homemade'"),
        ('{"model_type": "llama", "hidden_size": 65}', "cannot be configured"),
    ],
)
def test_a_configuration_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=says):
        load_workload(str(path))


@pytest.mark.parametrize("library", list(zoo.LIBRARIES))
def test_a_misspelt_name_gets_a_suggestion(library: str) -> None:
    name = zoo.library(library).names()[0]
    with pytest.raises(SourceError, match=f"Did you mean .*{name}"):
        load_workload(f"{library}/{name}x")


@pytest.mark.parametrize("library", list(zoo.LIBRARIES))
def test_every_name_takes_the_settings_of_a_step(library: str) -> None:
    names = zoo.library(library).names()
    for name in names[:: max(10, len(names) // 150)]:
        described = settings_of(find_function(f"{library}/{name}"))
        assert described.keys() >= STEP_SETTINGS, name
        assert isinstance(described["batch"].default, int)
        assert ("channels_last" in described) == ("image_size" in described), name


def test_the_shipped_table_is_wide() -> None:
    from foretell.sources.named.huggingface import architectures

    assert len(architectures()) >= 150
    assert len({architecture.model for architecture in architectures().values()}) >= 80


def test_every_shipped_configuration_is_accepted() -> None:
    for name in zoo.library("hf").names():
        load_workload(f"hf/{name}")


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "none"])
def test_optimizers_in_every_form(name: str) -> None:
    import torch

    weight = torch.nn.Parameter(torch.ones(2, 2))
    make = optimizer_named(name)
    assert make is not None
    optimizer = make([weight])
    weight.grad = torch.ones(2, 2)
    optimizer.step()


def test_an_unknown_optimizer() -> None:
    with pytest.raises(SourceError, match=r"unknown optimizer 'adamm'.*Did you mean 'adam'"):
        load_workload("timm/resnet18", {"optimizer": "adamm"})


def test_checkpointing_where_a_model_has_none(capture_in_child: Capture) -> None:
    with pytest.raises(Exception, match="no gradient checkpointing"):
        capture_in_child("hf/poolformer-s12", batch="2", checkpointing="true")


def test_the_graph_of_resnet50_is_compact(capture_in_child: Capture, tmp_path: Path) -> None:
    graph = capture_in_child("timm/resnet50", batch="2", image_size="64")
    graph.save(tmp_path / "resnet50.graph")
    assert len(graph.ops) > 700
    assert (tmp_path / "resnet50.graph").stat().st_size < 200_000
