"""Models, tokenizers and processors of the hub by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import foretell
from foretell.capture.script.pretend.hub import diffusion, models, names, tokenizers
from foretell.errors import WorkloadError
from foretell.sources.named.hub import hub_models
from foretell.sources.named.huggingface.architecture import text_part
from tests.capture.script.conftest import Write

pytest.importorskip("transformers")


def test_every_name_of_the_table_has_a_configuration_that_the_library_takes() -> None:
    from transformers import AutoConfig

    for name in (*hub_models(), *names._others()):
        said = names.entries(name)
        assert said["architectures"], name
        kind = said.pop("model_type")
        assert AutoConfig.for_model(kind, **said).model_type == kind, name


@pytest.mark.parametrize(
    ("name", "size", "pad", "wrapped"),
    [("bert-base-uncased", 30522, "[PAD]", 2), ("gpt2", 50257, None, 0), ("huggyllama/llama-7b", 32000, None, 1),
     ("google/flan-t5-small", 32100, "<pad>", 1), ("roberta-base", 50265, "<pad>", 2)],
)  # fmt: skip
def test_a_tokenizer_has_its_models_vocabulary_and_special_tokens(
    name: str, size: int, pad: str | None, wrapped: int
) -> None:
    made: Any = tokenizers._made(names.entries(name), name, {"padding_side": "left"})
    assert (len(made), made.pad_token, made.padding_side) == (size, pad, "left")
    text = "the quick brown fox"
    assert len(made(text)["input_ids"]) - len(made(text, add_special_tokens=False)["input_ids"]) == wrapped
    assert 4 <= len(made(text, add_special_tokens=False)["input_ids"]) <= 8


def test_a_name_that_nobody_knows_is_refused_with_a_way_out() -> None:
    with pytest.raises(
        WorkloadError, match=r"'nobody/none'.*config.json .*into a folder and give the script that folder"
    ):
        names.entries("nobody/none")


def test_parts_of_diffusion_models_are_known_by_their_folders() -> None:
    assert diffusion._parts("CompVis/stable-diffusion-v1-4")["unet"]["cross_attention_dim"] == 768
    second = diffusion._parts("stabilityai/stable-diffusion-2-1")
    assert (second["unet"]["cross_attention_dim"], second["scheduler"]["beta_schedule"]) == (1024, "scaled_linear")
    said = diffusion.text_part("stabilityai/stable-diffusion-xl-base-1.0", "tokenizer_2")
    assert said is not None
    assert said["hidden_size"] == 1280
    assert diffusion.text_part("bert-base-uncased", "") is None


TRAINS = """
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, BertModel
    tokenizer = AutoTokenizer.from_pretrained("prajjwal1/bert-tiny")
    config = AutoConfig.from_pretrained("prajjwal1/bert-tiny", num_labels=5)
    model = AutoModelForSequenceClassification.from_pretrained("prajjwal1/bert-tiny", config=config)
    assert not model.training and len(tokenizer) == 30522
    inner = BertModel.from_pretrained("prajjwal1/bert-tiny")
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    texts = tokenizer(["a text"] * 8, padding="max_length", max_length=32, truncation=True, return_tensors="pt").to("cuda")
    for _ in range(5):
        loss = model(**texts, labels=torch.zeros(8, dtype=torch.long, device="cuda")).loss
        loss.backward(); optimizer.step(); optimizer.zero_grad()
"""


def test_a_model_and_its_tokenizer_are_built_by_name(script: Write) -> None:
    graph = foretell.capture_graph(script(TRAINS, fake_data=True))
    assert graph.facts.parameters == 4_385_920 + 5 * 128 + 5
    (text,) = [c.text for c in graph.caveats if c.code == "fake-data"]
    for what in ("weights of prajjwal1/bert-tiny", "tokenizer of prajjwal1/bert-tiny"):
        assert what in text


FOUR_BITS = """
    import torch
    from transformers import AutoModelForCausalLM
    how = {"load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"}
    model = AutoModelForCausalLM.from_pretrained("jackfram/llama-68m", quantization_config=how, device_map="auto")
    assert model.is_loaded_in_4bit and model.device.type == "cuda"
    added = torch.nn.Linear(768, 768).cuda()
    optimizer = torch.optim.AdamW(added.parameters())
    for _ in range(5):
        tokens = torch.ones(2, 16, dtype=torch.long).cuda()
        hidden = model(tokens, output_hidden_states=True).hidden_states[-1]
        added(hidden.float()).sum().backward()
        optimizer.step(); optimizer.zero_grad()
"""


def test_layers_that_are_loaded_in_four_bits_are_unpacked_for_each_product(script: Write) -> None:
    graph = foretell.capture_graph(script(FOUR_BITS, fake_data=True))
    assert any("dequantize_4bit" in op.target for op in graph.ops)
    assert (graph.facts.parameters, graph.facts.untrained) == (768 * 769, 68_030_208)


def test_a_model_in_eight_bits_is_where_its_layers_are_and_is_not_moved(script: Write) -> None:
    eight = FOUR_BITS.replace("4bit", "8bit").replace(', "bnb_8bit_compute_dtype": "bfloat16"', "")
    graph = foretell.capture_graph(script(eight, fake_data=True))
    assert any("_int_mm" in op.target for op in graph.ops)
    assert (graph.facts.parameters, graph.facts.untrained) == (768 * 769, 68_030_208)


HERE = """
    import tokenizers, torch
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained("FOLDER")
    assert tokenizer("one two one")["input_ids"] == [1, 2, 1], tokenizer("one two one")

    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        model(torch.ones(2, 8).cuda()).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


def test_a_tokenizer_that_is_here_needs_no_model(script: Write, tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    words = library.Tokenizer(
        library.models.WordLevel({f"w{i}": i + 3 for i in range(99)} | {"?": 0, "one": 1, "two": 2}, "?")
    )
    words.pre_tokenizer = library.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"}')
    graph = foretell.capture_graph(script(HERE.replace("FOLDER", str(tmp_path)), fake_data=True))
    assert (graph.facts.parameters, graph.samples) == (72, 2)


class OlderModel(torch.nn.Linear):
    """As transformers 4 has models: it fails in its own way where there are no weights, and knows no `dtype`."""

    @classmethod
    def from_pretrained(cls, name: str, **how: Any) -> Any:
        None.endswith(".safetensors")  # type: ignore[attr-defined]

    @classmethod
    def _from_config(cls, config: Any, *, torch_dtype: torch.dtype) -> Any:
        return cls(2, 2, dtype=torch_dtype)


def test_models_of_an_older_library_are_built_where_there_are_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "is_fifth", lambda: False)
    stood_in: list[str] = []
    session: Any = SimpleNamespace(stand_in=stood_in.append)
    kind: Any = type("Model", (OlderModel,), {})
    models._models(SimpleNamespace(PreTrainedModel=kind), session)
    config = SimpleNamespace(torch_dtype=None)
    assert kind.from_pretrained("gpt2", config=config, torch_dtype="bfloat16").weight.dtype == torch.bfloat16
    assert (stood_in, config.torch_dtype) == (["weights of gpt2"], torch.bfloat16)
    with pytest.raises(AttributeError):  # what is here is read as it is
        kind.from_pretrained(str(tmp_path), config=config)


def test_a_configuration_that_does_not_tell_its_text_part_is_one_itself() -> None:
    """As those of transformers before 4.41."""
    before = SimpleNamespace(vocab_size=7)
    assert text_part(before) is before
    assert text_part(SimpleNamespace(get_text_config=lambda: before)) is before


def test_how_positions_are_turned_is_said_as_before() -> None:
    config, own = SimpleNamespace(rope_parameters={"rope_theta": 10_000.0}), {"rope_theta": 1e6, "other": 1}
    models._turn_as_before(config, own)
    assert (config.rope_parameters, own) == ({"rope_theta": 1e6}, {"other": 1})
