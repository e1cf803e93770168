"""Launch scripts are read as a shell reads them, and run by nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell.sources.configs.shell import arguments


def test_quoted_pairs_of_lists_are_two_words() -> None:
    script = """
    DTYPE_ARGS=(
        "--fp8-format hybrid"   # on Hopper
        "--vocab-size 128256"
        --bf16
    )
    DTYPE_ARGS+=(--seed 1)
    torchrun --nproc_per_node 8 train/pretrain_gpt.py ${DTYPE_ARGS[@]} "--seq-length" "$((4096 * 2))"
    """
    assert arguments(script) == {
        "nproc_per_node": "8", "fp8-format": "hybrid", "vocab-size": "128256", "bf16": True, "seed": "1", "seq-length": "8192",
        "script": "pretrain_gpt.py",
    }  # fmt: skip


def test_texts_of_arguments_over_lines_are_split() -> None:
    script = """
    N=12
    MODEL="
        --num-layers $N \\
        --hidden-size 768
    "
    MODEL="${MODEL} --swiglu"
    run="python -m torch.distributed.run --nnodes 2 --master_port 6000 pretrain_t5.py $MODEL --data ${DATA:-none}"
    echo $run
    eval $run 2>&1 | tee log.txt
    """
    assert arguments(script) == {
        "nnodes": "2", "num-layers": "12", "hidden-size": "768", "swiglu": True, "data": "none", "script": "pretrain_t5.py",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("size", "layers"), [("7B", "32"), ("13B", "40"), ("70B", "80"), ("", "80")]
)  # fmt: skip
def test_branches_are_taken_by_what_is_known(size: str, layers: str) -> None:
    script = f"""
    SIZE={size}
    if [[ $SIZE == "7B" ]]; then N=32; elif [ "$SIZE" = 13B ] && [ -z "$NOTHING" ]
    then
        N=40
    else
        N=80
    fi
    case $SIZE in
        7?) FLAG="--small" ;;
        13B|14B) FLAG="--middle" ;;
        *) FLAG="--large" ;;
    esac
    if [ $N -gt 64 ]; then FLAG="$FLAG --tp 8"; fi
    for rank in 0 1 2; do echo $rank; done
    python pretrain_gpt.py --num-layers $N $FLAG
    """
    found = arguments(script)
    assert found["num-layers"] == layers
    assert [name for name in ("small", "middle", "large") if name in found] == [
        {"32": "small", "40": "middle", "80": "large"}[layers]
    ]
    assert ("tp" in found) == (layers == "80")


def test_what_only_running_would_tell_is_not_known() -> None:
    assert arguments("python a.py --n $(nproc) --m `hostname` --k=$(date) --x 1") == {
        "n": True, "m": True, "k": True, "x": "1", "script": "a.py",
    }  # fmt: skip


def test_files_that_a_script_sources_or_writes_are_read(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export LAYERS=${LAYERS:-6}\nWIDTH=64\n")
    (tmp_path / "template.json").write_text('{"train_batch_size": BATCH, "zero_optimization": {"stage": STAGE}}')
    script = """
    source env.sh
    DS=ds_$WIDTH.json
    sed "s/BATCH/32/" template.json | sed 's/STAGE/2/' > $DS
    deepspeed --num_gpus 4 pretrain.py --num-layers $LAYERS --deepspeed --deepspeed_config $DS
    """
    found = arguments(script, tmp_path)
    assert found["num-layers"] == "6"
    assert found["deepspeed_config"] == {"train_batch_size": 32, "zero_optimization": {"stage": 2}}
    document = 'cat <<EOT > ds.json\n{"train_batch_size": $B}\nEOT\npython a.py --deepspeed_config ds.json'
    assert arguments("B=8\n" + document)["deepspeed_config"] == {"train_batch_size": 8}


def test_positions_are_what_is_given() -> None:
    script = "TP=${2:-1}\npython a.py --model $1 --tp $TP ${10} --n $#"
    assert arguments(script, given=("7B",)) == {"model": "7B", "tp": "1", "n": "1", "script": "a.py"}
    assert arguments(script, given=("7B", "4"))["tp"] == "4"


def test_a_script_that_grows_without_end_is_refused() -> None:
    doubling = "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 64 + "python a.py --x $A"
    with pytest.raises(ValueError, match="beyond all bounds"):
        arguments(doubling)
    assert arguments("(" * 1000 + "$(" * 1000 + '"' + "if " * 500) == {}


def test_blanks_to_fill_in_are_no_redirections() -> None:
    script = 'run="python a.py --data <PATH TO DATA> --fp16"\nsrun -l sh -c "${run}"'
    assert arguments(script) == {"data": "<PATH_TO_DATA>", "fp16": True, "script": "a.py"}
