"""Public files become tables in SI units, known by their columns, or an error that says what is missing."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.store.importers import (
    Format,
    LeftOut,
    Row,
    formats,
    public_file,
    public_rows,
    read_public,
    recognise,
    take,
)
from foretell.store.store import Store

ROOT = Path(__file__).parents[2]
PUBLIC = ROOT.parent / "shared" / "data"

SAMPLES = {
    "gemm": (
        "system,source,device,kernel_source,gemm_dtype,m,n,k,latency\n"
        "h200_sxm,vllm/0.24.0,NVIDIA H200,vllm_default,bfloat16,8192,65536,4096,5.25\n",
        {"library": "vllm/0.24.0", "m": 8192, "seconds": 0.00525},
    ),
    "ddp_step_times": (
        "app,cluster,gpu,kind,placement,num_nodes,num_replicas,local_bsz,step_time_s,sync_time_s,measured\n"
        'bert,aws,"T4 (g4dn.12xlarge, 4/node)",placements,44.0,2,8,4.0,0.45,0.01,1\n'
        'bert,aws,"T4 (g4dn.12xlarge, 4/node)",scalability,,2,8,4.0,0.45,0.01,1\n',
        {"placement": "44", "batch": 4, "step_seconds": 0.45, "evaluation_only": True},
    ),
    "vtrain_single_node": (
        "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,"
        "data parallelism,pipeline parallelism,iteration time (ms)\n4,16,4,2048,16,24,1024,1,2,2,410.5\n",
        {"gpus": 4, "layers": 24, "step_seconds": 0.4105},
    ),
    "allreduce_single_node": (
        "device,gpus,bytes,count,type,out_of_place_ns,out_of_place_busbw_gbs,in_place_ns,in_place_busbw_gbs\n"
        "a100,2,1048576,262144,float,44210,23.72,45100,23.25\n",
        {"message_bytes": 2**20, "seconds": 44.21e-6, "bus_bandwidth": 23.72e9},
    ),
    "v100_tensor_parallel_ops": (
        "family,size,mbs,tp,algo,op_name,forward-compute,backward-compute,input_size,output_size,weights,activations,"
        "fwd_reserved,bwd_reserved\ngpt,13B,1,1,0,encoder-embedding,419.899,3232.898,0.5,20.0,520.0,30.0,0.0,540.0\n",
        {"forward_seconds": 419.899e-6, "input_bytes": 2**19, "backward_reserved_bytes": 540 * 2**20},
    ),
    "timm_train": (
        "device,precision,layout,torch,compiled,model,train_samples_per_sec,train_step_time,train_batch_size,"
        "train_img_size,param_count\nrtx3090,amp,nchw,pt112,False,tinynet_e,10001.12,50.423,512,106,2.04\n",
        {"compiled": False, "step_seconds": 0.050423, "parameters": 2.04e6},
    ),
    "llm_h100_sweep": (
        "model,nodes,gpus,micro_batch,grad_accum,global_batch,dp,pp,tp,zero,seq_len,mfu,tokens_per_s_per_gpu,"
        "tokens_per_s,memory_gb,status\n1B,1,8,2,16,256,8,1,1,0,4096,,,,,crashed\n"
        "1B,1,8,2,16,256,8,1,1,0,4096,0.392,40150.0,321200.0,50.2,ok\n",
        {"status": "crashed", "memory_bytes": None, "mfu": None},
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_in_si_units(tmp_path: Path, name: str) -> None:
    text, wanted = SAMPLES[name]
    path = tmp_path / "file of any name.csv"
    path.write_text(text)
    read = read_public(path)
    assert read.format.name == name
    assert read.ignored == ()
    row = read.table.to_pylist()[0]
    for key, value in wanted.items():
        assert row[key] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), key
    assert row["source"] == read.format.source
    assert row["licence"]
    assert row["evaluation_only"] is (name == "ddp_step_times")


def test_compressed_is_the_same(tmp_path: Path) -> None:
    text, _ = SAMPLES["gemm"]
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert read_public(tmp_path / "a.csv").table == read_public(tmp_path / "a.csv.gz").table


def test_rows_of_a_named_file(tmp_path: Path) -> None:
    (tmp_path / "llm_h100_sweep.csv").write_text(SAMPLES["llm_h100_sweep"][0])
    crashed, ok = public_rows(tmp_path, "llm_h100_sweep")
    assert crashed["memory_bytes"] is None
    assert ok["memory_bytes"] == pytest.approx(50.2 * 2**30), "the source's GB are GiB"
    assert set(ok) == {column.ours for column in formats()["llm_h100_sweep"].columns}
    assert public_file(tmp_path, "gemm") is None
    with pytest.raises(InputError, match=r"no gemm.csv or gemm.csv.gz in"):
        public_rows(tmp_path, "gemm")


def test_a_file_under_another_ones_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nccl.csv").write_text(SAMPLES["gemm"][0])
    with pytest.raises(InputError, match="has the columns of gemm, not of nccl"):
        public_rows(tmp_path, "nccl")


def test_every_row_is_taken_or_counted(tmp_path: Path) -> None:
    def memory(row: Row) -> float:
        if row["status"] != "ok":
            raise LeftOut(row["status"])
        return float(row["memory_bytes"])

    (tmp_path / "llm_h100_sweep.csv").write_text(SAMPLES["llm_h100_sweep"][0])
    taken = take(public_rows(tmp_path, "llm_h100_sweep"), memory)
    assert taken.items == (pytest.approx(50.2 * 2**30),)
    assert taken.left_out == {"crashed": 1}
    assert str(taken) == "1 of 2 rows; left out: 1 crashed"
    assert str(take([], memory)) == "0 of 0 rows"


def broken(tmp_path: Path, text: str | bytes, name: str = "x.csv") -> str:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as error:
        read_public(tmp_path / name)
    return str(error.value)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    text = SAMPLES["gemm"][0].replace(",latency", ",time").replace(",k,", ",kk,")
    message = broken(tmp_path, text)
    assert "looks like gemm, but lacks the columns 'k', 'latency'" in message


@pytest.mark.parametrize("text", ["a,b,c\n1,2,3\n", "", "\n\n", "\x00\x01"])
def test_an_unknown_file_is_refused(tmp_path: Path, text: str) -> None:
    assert "no public file we know. Known: llm_h100_sweep" in broken(tmp_path, text)


def test_a_value_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    assert "cannot be read as gemm" in broken(tmp_path, SAMPLES["gemm"][0].replace("5.25", "fast"))
    assert "cannot be read as gemm" in broken(tmp_path, SAMPLES["gemm"][0].replace("8192", "8192.5"))
    assert "cannot be read as gemm" in broken(tmp_path, SAMPLES["gemm"][0] + "one,two\n")


def test_files_that_are_not_whole(tmp_path: Path) -> None:
    data = gzip.compress(SAMPLES["gemm"][0].encode())
    assert "not a whole gzip file" in broken(tmp_path, data[:-10], "x.csv.gz")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_public(tmp_path / "nosuch.csv")


def test_extra_columns_are_reported(tmp_path: Path) -> None:
    header, row = SAMPLES["gemm"][0].splitlines()
    (tmp_path / "x.csv").write_text(f"{header},extra\n{row},1\n")
    assert read_public(tmp_path / "x.csv").ignored == ("extra",)


def test_imported_rows_are_queried(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(SAMPLES["gemm"][0])
    read = read_public(tmp_path / "x.csv")
    store = Store(tmp_path / "store")
    assert store.add_table(read.format.name, read.table)
    assert not store.add_table(read.format.name, read.table), "the same file is stored once"
    assert store.query("SELECT seconds, licence FROM public_gemm").to_pylist() == [
        {"seconds": 0.00525, "licence": "Apache-2.0"}
    ]
    other = Store(tmp_path / "other")
    other.merge(store)
    assert other.query("SELECT count(*) AS n FROM public_gemm").column("n")[0].as_py() == 1


@pytest.mark.parametrize("form", formats().values(), ids=lambda form: form.name)
class TestFormats:
    def test_a_name_is_given_once(self, form: Format) -> None:
        ours = [column.ours for column in form.columns]
        theirs = [column.theirs for column in form.columns]
        assert len(set(ours)) == len(ours)
        assert len(set(theirs)) == len(theirs)
        assert all(name == name.lower() and name.isidentifier() for name in ours)

    def test_it_says_where_it_is_from(self, form: Format) -> None:
        assert form.source
        assert form.licence
        assert form.row

    def test_it_is_recognised_by_its_own_columns(self, form: Format) -> None:
        assert recognise([column.theirs for column in form.columns], Path("x")) is form

    @pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public files are not beside the repository")
    def test_the_public_file(self, form: Format, tmp_path: Path) -> None:
        read = read_public(PUBLIC / f"{form.name}.csv.gz")
        assert read.format is form
        assert read.ignored == ()
        assert read.table.num_rows >= 50
        for column in form.columns:
            if column.kind in ("s", "ms", "us", "ns"):
                values = [v for v in read.table.column(column.ours).to_pylist() if v is not None]
                assert values, column
                assert min(values) >= 0, column
                assert max(values) < 86400, column  # a day: seconds, not milliseconds


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public files are not beside the repository")
def test_peak_times_time_is_flops() -> None:
    """A slip by a thousand in a unit would show: no matrix product is faster than the device's datasheet."""
    rows = read_public(PUBLIC / "gemm.csv.gz").table.to_pylist()
    ours = [r for r in rows if r["dtype"] == "bfloat16" and r["device"] == "NVIDIA H200"]
    fastest = max(2.0 * r["m"] * r["n"] * r["k"] / r["seconds"] for r in ours)
    assert 400e12 < fastest < 1.1 * 989e12


def test_the_page_lists_every_format() -> None:
    [place] = (ROOT / "docs").rglob("store.md")
    page = place.read_text(encoding="utf-8")
    for form in formats().values():
        assert f"| `public_{form.name}` | {form.row} | {form.source}; {form.licence}" in page
