"""Scripts as they are: the step that is found in them, against a Workload written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foretell
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write


def ops(graph: foretell.Graph) -> list[tuple[Any, ...]]:
    return [(op.signature.name, op.signature.inputs, op.signature.outputs, op.times) for op in graph.ops]


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 900, 10))


def test_amp_accumulation_and_clipping_as_a_workload_has_them(script: Write) -> None:
    graph = foretell.capture_graph(
        script(
            """
            import torch
            from torch import nn
            from torch.cuda.amp import GradScaler
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 900, 10))
            model.to(device)
            optimizer = torch.optim.AdamW(model.parameters())
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
            scaler = GradScaler()
            for step in range(1000):
                for micro in range(5):
                    x, y = torch.randn(4, 3, 32, 32).pin_memory().to(device, non_blocking=True), torch.randint(10, (4,)).cuda()
                    with torch.autocast("cuda"):
                        loss = nn.functional.cross_entropy(model(x), y)
                    scaler.scale(loss / 5).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
                scheduler.step()
            """
        )
    )
    by_hand = foretell.Workload(
        name="by hand",
        model=convolutions,
        batch=lambda: (torch.randn(4, 3, 32, 32), torch.randint(10, (4,))),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
        precision="amp-fp16",
        grad_accumulation=5,
        clip_grad_norm=1.0,
    )
    assert ops(graph) == ops(foretell.capture_graph(by_hand))
    assert (graph.samples, graph.precision.name, graph.grad_accumulation) == (4, "amp-fp16", 5)
    plan = graph.facts.plan
    assert plan is not None
    assert (plan.by, plan.settings, plan.devices) == ("script", {}, 1)


@pytest.mark.parametrize(
    ("said", "precision"),
    [
        ("", "torch-fp32"),
        ("torch.backends.cudnn.allow_tf32 = False", "fp32"),
        ("torch.set_float32_matmul_precision('high')", "tf32"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "tf32"),
    ],
)
def test_units_are_those_the_script_allows(script: Write, said: str, precision: str) -> None:
    text = f"""
        import torch
        {said}
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for step in range(9):
            model(torch.randn(4, 8).cuda()).sum().backward()
            optimizer.step()
    """
    assert foretell.capture_graph(script(text)).precision.name == precision


@pytest.mark.parametrize(
    ("wrapped", "processes", "told"),
    [
        ("model", 1, False),
        ("model", 2, True),
        ("torch.nn.parallel.DistributedDataParallel(model)", 2, False),
    ],
)
def test_a_script_that_distributes_nothing_is_told_so(script: Write, wrapped: str, processes: int, told: bool) -> None:
    text = f"""
        import torch
        torch.distributed.init_process_group("nccl")
        model = torch.nn.Linear(8, 8).cuda()
        model = {wrapped}
        optimizer = torch.optim.SGD(model.parameters())
        for step in range(9):
            model(torch.randn(4, 8).cuda()).sum().backward()
            optimizer.step()
    """
    graph = foretell.capture_graph(script(text, processes=processes))
    assert any(caveat.code == "script-on-one-device" for caveat in graph.caveats) == told


_GAN = """
    import torch
    from torch import nn
    G = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 32)).cuda()
    D = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
    of_g, of_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
    for step in range(100):
        real = torch.randn(4, 32).cuda()
        for critic in range(CRITICS):
            of_d.zero_grad()
            (D(G(torch.randn(4, 8, device="cuda")).detach()).mean() - D(real).mean()).backward()
            of_d.step()
        of_g.zero_grad()
        (-D(G(torch.randn(4, 8, device="cuda"))).mean()).backward()
        of_g.step()
"""


@pytest.mark.parametrize("critics", [1, 3])
def test_a_step_ends_when_the_optimizers_have_had_their_turn(script: Write, critics: int) -> None:
    graph = foretell.capture_graph(script(_GAN.replace("CRITICS", str(critics))))
    assert sum(op.signature.name == "aten.randn" for op in graph.ops) == critics + 1
    updates = [op for op in graph.ops if op.signature.name == "aten._foreach_addcdiv_" and op.phase == "optimizer"]
    assert len(updates) == critics + 1
    assert graph.grad_accumulation == 1


def test_what_is_asked_of_the_device_is_answered_as_the_device(script: Write) -> None:
    asked = script(
        """
        import os, sys, torch
        from torch import nn
        assert sys.argv[1:] == ["--width", "32"], sys.argv
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.get_device_name() == "NVIDIA H100 SXM5 80 GB", torch.cuda.get_device_name()
        assert torch.cuda.get_device_capability() == (9, 0)
        assert torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1] > 2**36
        torch.cuda.manual_seed_all(0); torch.cuda.empty_cache(); torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            begin.record()
        generator = torch.Generator(device="cuda").manual_seed(3)
        model = nn.Linear(32, 32).to("cuda:0")
        assert next(model.parameters()).is_cuda and model.weight.device == torch.device("cuda", 0)
        assert isinstance(model.weight, nn.Parameter) and not torch.randn(3).is_cuda
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            x = torch.tensor([[1.0] * 32], device="cuda")
            loss = model(x).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            assert loss.cpu().numpy().shape == () and isinstance(loss.item(), float)
            if not torch.isfinite(loss):
                sys.exit("not finite")
            print(f"{loss:.3f}", loss.tolist(), x.device, torch.cuda.max_memory_allocated() / 2**20)
            end.record(); print(begin.elapsed_time(end))
        """,
        arguments=("--width", "32"),
    )
    forecast = foretell.forecast(asked, "h100-sxm")
    assert forecast.plan == "dp=1"
    assert forecast.step_time.seconds > 0


def test_the_driver_answers_as_the_device(script: Write) -> None:
    job = script("""
        import pynvml, torch
        from pynvml.smi import nvidia_smi
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetName(handle) == torch.cuda.get_device_name()
        assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == torch.cuda.mem_get_info()[1]
        assert pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) == 0
        try:
            pynvml.nvmlDeviceGetEccMode(handle)
        except pynvml.NVMLError:
            pass
        [gpu] = nvidia_smi.getInstance().DeviceQuery("memory.used, memory.total, utilization.gpu")["gpu"]
        assert gpu["fb_memory_usage"]["used"] == gpu["utilization"]["gpu_util"] == 0
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model(torch.randn(8, 4, device="cuda")).sum().backward()
            optimizer.step()
    """)
    assert foretell.capture_graph(job).samples == 8


def test_a_process_group_and_ddp_become_the_plan(script: Write) -> None:
    there = script(
        """
        import os, torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP
        dist.init_process_group("nccl")
        rank = int(os.environ["LOCAL_RANK"])
        assert dist.get_world_size() == 4 == torch.cuda.device_count() and dist.get_rank() == rank
        torch.cuda.set_device(rank)
        model = DDP(nn.Linear(8, 8).to(rank), device_ids=[rank], bucket_cap_mb=10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            with model.no_sync():
                model(torch.randn(2, 8, device=rank)).sum().backward()
            loss = model(torch.randn(2, 8, device=rank)).sum()
            loss.backward()
            dist.all_reduce(loss.detach())
            outputs = [torch.zeros_like(loss) for _ in range(4)]
            dist.all_gather(outputs, loss)
            optimizer.step(); optimizer.zero_grad()
        dist.destroy_process_group()
        """
    )
    forecast = foretell.forecast(there, "4xh100-sxm")
    assert forecast.plan == f"dp=4,bucket_bytes={10 * 2**20}"
    assert foretell.forecast(there, "4xh100-sxm", "dp=4,zero=1").plan == "dp=4,zero=1"


def test_fully_shard_becomes_the_plan(script: Write) -> None:
    forecast = foretell.forecast(
        script(
            """
            import torch
            from torch import nn
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard
            mesh = init_device_mesh("cuda", (2,))
            model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
            for layer in model:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            assert all(p.placements and p.device_mesh is mesh for p in model.parameters())
            model.cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            for step in range(5):
                model(torch.randn(2, 64, device="cuda")).sum().backward()
                optimizer.step(); optimizer.zero_grad()
            """
        ),
        "2xh100-sxm",
    )
    assert forecast.plan == "dp=2,zero=3"


def test_nothing_is_written_and_what_was_is_found_again(script: Write, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    graph = foretell.capture_graph(
        script(
            """
            import json, os, pathlib, shutil, torch, wandb
            import torch.distributed.checkpoint as checkpoint
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import hparams
            first, second, third = hparams({"lr": 0.1}, {})
            wandb.init(project="x"); writer = SummaryWriter("runs")
            os.makedirs("out/deep", exist_ok=True)
            assert os.path.isdir("out/deep") and pathlib.Path("out").exists()
            with open("out/deep/log.json", "w") as file:
                json.dump({"a": 1}, file)
            assert json.load(open("out/deep/log.json")) == {"a": 1} and os.listdir("out/deep") == ["log.json"]
            pathlib.Path("notes.md").write_text("x")
            os.makedirs(name="by/name", exist_ok=True); os.rename(src="out/deep/log.json", dst="by/name/log.json")
            assert os.listdir(path="by/name") == ["log.json"] and not os.listdir("out/deep")
            shutil.copy(src="kept.txt", dst="copied.txt"); os.remove(path="by/name/log.json")
            open("kept.txt", "a").write(" and more"); os.remove("kept.txt")
            model = torch.nn.Linear(4, 4).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(5):
                loss = model(torch.randn(2, 4, device="cuda")).sum()
                loss.backward(); optimizer.step()
                wandb.log({"loss": loss.item()}); writer.add_scalar("loss", loss, step)
                torch.save(model.state_dict(), "out/model.pt")
                checkpoint.save(model.state_dict(), checkpoint_id="out/shared")
            """
        )
    )
    assert graph.ops
    assert sorted(p.name for p in tmp_path.iterdir() if p.name not in ("cache", "store")) == ["kept.txt", "train.py"]
    assert (tmp_path / "kept.txt").read_text() == "mine"


def test_a_script_that_asks_another_machine_is_told_where(script: Write) -> None:
    with pytest.raises(WorkloadError, match=r"connection to example\.com in line 3 .*urlopen.*--fake-data"):
        foretell.capture_graph(
            script("import torch\nfrom urllib.request import urlopen\nurlopen('http://example.com/data.zip')\n")
        )


def test_a_script_without_an_update_is_told_so(script: Write) -> None:
    with pytest.raises(WorkloadError, match="without an update") as told:
        foretell.capture_graph(script("import foretell\ndef resnet() -> foretell.Workload: ...\ndef make_env(): ...\n"))
    assert "train.py:resnet" in str(told.value)
    assert "make_env" not in str(told.value)


def test_a_script_without_an_update_hears_what_it_ends_with(script: Write) -> None:
    text = 'import torch\ndef translate(): ...\nif __name__ == "__main__":\n    # train()\n    translate()\n'
    with pytest.raises(WorkloadError, match=r"with line 5 of .*train\.py \(translate\(\)\) as its last"):
        foretell.capture_graph(script(text))


def test_shapes_that_do_not_go_together_are_told_once(script: Write) -> None:
    with pytest.raises(WorkloadError, match="must have same reduction dim") as told:
        foretell.capture_graph(script("import torch\ntorch.nn.Linear(3, 4).cuda()(torch.randn(2, 5).cuda())\n"))
    assert "line 2" in str(told.value)
    assert "It printed" not in str(told.value), "torch's log of the same error"


def test_a_script_is_shown_with_what_it_printed_and_an_error_without_a_message_gets_one(script: Write) -> None:
    with pytest.raises(WorkloadError, match=r"AssertionError: .*no message") as told:
        foretell.capture_graph(script("print('almost there')\nassert 1 == 2\n"))
    assert "almost there" in str(told.value)
    assert "assert 1 == 2" in str(told.value)


def test_missing_data_is_stood_in_for_when_asked(script: Write) -> None:
    text = """
        import numpy as np, torch, torchvision
        from torch import nn
        from torchvision import transforms
        resize = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
        pictures = torchvision.datasets.ImageFolder("/nowhere/train", resize)
        numbers = torchvision.datasets.MNIST("/nowhere", train=True, download=True, transform=transforms.ToTensor())
        tokens = np.memmap("/nowhere/train.bin", dtype=np.uint16, mode="r")
        assert len(np.memmap("data/characters/train.bin", dtype=np.uint16, mode="r")) > 1_000_000
        assert numbers[0][0].shape == (1, 28, 28) and int(tokens[1000]) == 0
        loader = torch.utils.data.DataLoader(pictures, batch_size=4, shuffle=True, num_workers=8, persistent_workers=True)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, len(pictures.classes))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step(); optimizer.zero_grad()
    """
    with pytest.raises(WorkloadError, match=r"reads /nowhere/train in line 6 of .*--fake-data"):
        foretell.capture_graph(script(text))
    graph = foretell.capture_graph(script(text, fake_data=True))
    assert graph.samples == 4
    assert any(c.code == "fake-data" and "/nowhere/train" in c.text for c in graph.caveats)


def test_a_script_that_trains_on_the_host_is_forecast_as_if_it_had_moved_its_model(script: Write) -> None:
    text = """
        import torch
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Dropout())MOVED
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(5):
            pictures = torch.randn(2, 3, 8, 8)MOVED
            loss = ((model(pictures) - torch.zeros(2, 4, 6, 6)MOVED) ** 2).mean()
            loss.backward()
            optimizer.step(); optimizer.zero_grad()
            total = torch.zeros(1)
            total[0] = loss.item()
    """
    here, there = (foretell.capture_graph(script(text.replace("MOVED", moved))) for moved in ("", ".to('cuda')"))
    assert ops(here) == ops(there)
    assert (here.samples, here.facts.parameters) == (there.samples, there.facts.parameters) == (2, 120)
    assert ["script-on-host" in {caveat.code for caveat in graph.caveats} for graph in (here, there)] == [True, False]


def test_a_script_that_moves_nothing_and_has_no_module_is_told_so(script: Write) -> None:
    with pytest.raises(WorkloadError, match="stays on the host"):
        foretell.capture_graph(
            script(
                """
                import torch
                weight = torch.randn(4, 4, requires_grad=True)
                optimizer = torch.optim.Adam([weight])
                for step in range(5):
                    (torch.randn(2, 4) @ weight).sum().backward()
                    optimizer.step(); optimizer.zero_grad()
                """
            )
        )


def test_a_package_of_the_repository_need_not_be_installed(script: Write, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "src" / "stranger_nets").mkdir(parents=True)
    (tmp_path / "src" / "stranger_nets" / "__init__.py").write_text("import torch\nnet = torch.nn.Linear(4, 4)\n")
    graph = foretell.capture_graph(
        script(
            """
            import torch
            from stranger_nets import net
            net.cuda()
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            for step in range(5):
                net(torch.randn(2, 4).cuda()).sum().backward()
                optimizer.step(); optimizer.zero_grad()
            """
        )
    )
    assert graph.facts.parameters == 20


def test_a_tracker_that_a_library_imports_when_it_is_asked_to_is_stood_in_for(
    script: Write, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = tmp_path_factory.mktemp("library")
    (library / "engines.py").write_text(
        "from importlib.util import find_spec\n"
        "HAS = find_spec('wandb') is not None\n"
        "def logger():\n    import wandb\n    return wandb.init(project='x')\n"
    )
    text = f"""
        import sys
        sys.path.append({str(library)!r})
        import torch, engines
        assert not engines.HAS
        log = engines.logger()
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            model(torch.randn(4, 8).cuda()).sum().backward()
            optimizer.step()
            log.log({{"step": step}})
    """
    assert foretell.capture_graph(script(text)).ops


def test_a_tracker_that_a_library_has_imported_keeps_its_parts(
    script: Write, tmp_path_factory: pytest.TempPathFactory
) -> None:
    there = tmp_path_factory.mktemp("libraries")
    (there / "wandb").mkdir()
    (there / "usual.py").write_text("import wandb\nwandb.begin()\n")
    (there / "wandb" / "inner.py").write_text("class Base:\n    pass\n")
    (there / "wandb" / "__init__.py").write_text(
        "def begin():\n    from wandb.inner import Base\n    class Own(Base):\n        pass\n"
    )
    job = script(f"""
        import sys
        sys.path.append({str(there)!r})
        import usual, torch
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model(torch.randn(8, 4, device="cuda")).sum().backward()
            optimizer.step()
    """)
    assert foretell.capture_graph(job).samples == 8


def test_a_mask_that_torch_makes_for_attention_lies_on_the_device(script: Write) -> None:
    text = """
        import torch
        model = torch.nn.Linear(16, 16).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            q = model(torch.randn(2, 4, 8, 16, device="cuda"))
            k = q[:, :2]  # fp32 and fewer heads: no fused kernel
            torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).sum().backward()
            optimizer.step()
    """
    made = [op.signature for op in foretell.capture_graph(script(text)).ops if op.target == "aten.ones.default"]
    assert [signature.outputs[0].shape for signature in made] == [(8, 8)]
