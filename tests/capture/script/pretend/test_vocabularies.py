"""Tokenizers and tables in files that are not here, and accounts that nobody uses."""

from __future__ import annotations

import operator
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import foretell
from foretell.capture.script.pretend.files.unknown import Record, Word
from foretell.capture.script.pretend.hub import names, tokenizers, vocabularies
from foretell.capture.script.pretend.sets.columns import column, spread, text
from foretell.capture.script.pretend.sets.described import described
from tests.capture.script.conftest import Write

TRAINS = """
    import json, os, pickle, torch
    import numpy as np
    import pyarrow.parquet as tables
    import tokenizers
    from safetensors import safe_open
    from huggingface_hub import HfApi, create_repo, login

    login()
    assert create_repo("mine").repo_id == "user/mine" and HfApi().whoami()["name"] == "user"
    vocab_size: int = 4096
    path = "words/tokenizer.json"
    assert os.path.isfile(path), path
    assert tokenizers.Tokenizer.from_file(path).get_vocab_size() == 4096
    with open("words/tokenizer.pkl", "rb") as file:
        words = pickle.load(file)
    assert words.encode_single_token("<|bos|>") != words.encode_single_token("<|end|>")
    texts = tables.ParquetFile("data/shard_00000.parquet").read_row_group(3).column("text").to_pylist()
    with open("words/table.pt", "rb") as file:
        table = torch.load(file)
    assert table[torch.zeros(3, dtype=torch.long)].shape == (3,)
    with open("/data/Meta-Llama-3.1-8B-Instruct/config.json") as file:
        assert json.loads(file.read())["num_key_value_heads"] == 8
    with safe_open("weights/model.safetensors", framework="pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}
    with open("data/train.bin", "rb") as file:
        assert np.fromfile(file, dtype=np.uint16).shape == (2**22,)
    with open("data/train.jsonl") as file:
        assert len([7] + json.loads(next(file))["context"]) > 1
    model = torch.nn.Embedding(words.n_vocab, 8).cuda()
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        ids = torch.tensor([words.encode(texts[0])[:8]] * 2).cuda()
        model(ids).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


def test_tokenizers_in_files_know_as_many_words_as_the_sources_say(script: Write) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("tokenizers")
    graph = foretell.capture_graph(script(TRAINS, fake_data=True))
    assert (graph.facts.parameters, graph.samples) == (4096 * 8, 2)
    (sized,) = [c.text for c in graph.caveats if c.code == "assumed-size"]
    assert "tokenizer words/tokenizer.pkl (4,096 words" in sized


def test_sentencepiece_becomes_ours_where_its_file_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("sentencepiece")
    module.SentencePieceProcessor = type("SentencePieceProcessor", (), {"__init__": lambda self, file=None: None})
    monkeypatch.setattr(sys, "argv", ["nothing.py"])
    monkeypatch.setattr(vocabularies.overlay, "is_there", lambda path: False)
    found: list[str] = []

    class Session:
        class script:
            arguments = ("--vocab_size=6144",)

        @staticmethod
        def stand_in(what: str, assumed: str, *, decides_size: bool) -> None:
            found.append(what)

    vocabularies._pieces(module, Session)  # type: ignore[arg-type]
    words = module.SentencePieceProcessor()
    assert words.Load("nowhere/spm.model")
    assert (words.vocab_size(), len(words), words.eos_id(), found) == (6144, 6144, 2, ["tokenizer nowhere/spm.model"])
    assert words.encode("the quick", add_bos=True)[0] == 1
    assert len(words.EncodeAsIds("the quick brown")) == 4


@pytest.mark.parametrize(
    ("name", "known"),
    [("textattack/bert-base-uncased-MNLI", "bert-base-uncased"), ("/path/to/roberta_base/", "roberta-base"),
     ("meta-llama/Llama-4-Scout", ""), ("nobody/none", ""), ("LLM-Research/Meta-Llama-3-8B-Instruct", "meta-llama/meta-llama-3-8b"),
     ("models/llama3.2-1B", "meta-llama/llama-3.2-1b"), ("trl-lib/qwen1.5-1.8b-sft", "qwen/qwen1.5-1.8b"),
     ("Qwen/Qwen2.5-VL-3B-Instruct", "qwen/qwen2.5-vl-3b")],
)  # fmt: skip
def test_a_path_may_have_a_known_name_in_it(name: str, known: str) -> None:
    assert names.alike(name) == known


def test_a_class_tells_the_type_of_its_model() -> None:
    pytest.importorskip("transformers")
    assert [tokenizers._type_of(kind) for kind in ("BertTokenizer", "LlamaTokenizerFast", "AutoTokenizer")] == [
        "bert", "llama", None,
    ]  # fmt: skip
    assert names.of_type("bert", "./chinese_wwm")["vocab_size"] == 21128


def test_columns_are_as_the_script_describes_them() -> None:
    text_of, many = (lambda dtype: SimpleNamespace(dtype=dtype)), [{"role": 0, "content": 0}]
    many[0] = {"role": text_of("string"), "content": text_of("string"), "tools": text_of("string")}
    made = described({"conversations": many, "ids": text_of("int32")})
    assert [turn["role"] for turn in made["conversations"].value(0)] == ["user", "assistant"] * 2
    assert made["conversations"].value(0)[0]["tools"] == ""
    assert made["ids"].value(3) == 3


def test_a_row_or_a_word_that_is_used_as_a_list_is_one_of_tokens() -> None:
    assert Record()[:5] == [1] * 5
    assert operator.add(Word("a"), [2])[-1] == 2
    assert operator.add([2], Word("a"))[0] == 2
    assert "b" + Word("a") == "ba"


def test_texts_are_as_long_as_published_in_the_mean_and_differ() -> None:
    for mean in (100, 1000):
        lengths = [spread(mean, row) for row in range(16)]
        assert sum(lengths) / 16 == pytest.approx(mean, rel=0.05)
        assert max(lengths) > 1.5 * mean
    assert text(60, 3) != text(60, 4)


def test_what_is_chosen_and_what_is_rejected_begin_alike() -> None:
    library: Any = SimpleNamespace(Value=lambda dtype: dtype)
    for spec in ("messages:2:{}", "dialogue:{}"):
        chosen, rejected = (
            column(library, spec.format(n), name=name).value(5) for n, name in ((1000, "chosen"), (900, "rejected"))
        )
        assert chosen != rejected
        assert chosen[0] == rejected[0] if isinstance(chosen, list) else chosen[:100] == rejected[:100]
