"""CUDA as torch shows it on a machine that has one: old types, names that libraries bind, contents that are assigned."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretell
from foretell.errors import WorkloadError
from tests.capture.script.conftest import Write

GAN = """
    import pickle
    import numpy as np, torch
    from torch import nn
    from torch.autograd import Variable

    Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
    maker, judge = nn.Linear(10, 20).cuda(), nn.Linear(20, 1).cuda()
    embedding = nn.Embedding(10, 4)
    embedding.weight.data = torch.from_numpy(np.zeros((30, 10), dtype="float32"))
    embedding.to("cuda")
    assert embedding.weight.is_cuda and embedding(torch.tensor([1, 29]).cuda()).shape == (2, 10)

    # Types, as names and as classes
    assert torch.zeros(3).type(Tensor).type() == "torch.cuda.FloatTensor"
    assert isinstance(Tensor(2, 3), torch.cuda.FloatTensor) and not isinstance(torch.zeros(2), torch.cuda.FloatTensor)
    assert Tensor(torch.Size([4, 5])).shape == (4, 5) and Tensor([4, 5]).shape == (2,)
    assert not torch.zeros(3).cuda().type(torch.LongTensor).is_cuda
    assert torch.zeros(3).type("torch.cuda.LongTensor").dtype is torch.int64
    assert torch.zeros(3).cuda().type(torch.float16).is_cuda and torch.zeros(3).type() == "torch.FloatTensor"
    assert torch.zeros(3).cuda().new(np.int64(2), 3).is_cuda and nn.Linear(2, 2).type(torch.cuda.HalfTensor).weight.is_cuda

    assert torch.zeros(3).cuda().new_tensor([1.0]).is_cuda
    number = maker(torch.randn(4, 10).cuda()).mean()
    assert torch.Tensor([[number, number]]).shape == (1, 2) and torch.Tensor([number]).shape == (1,)
    chosen = torch.LongTensor([[number.argmax(), 3]])
    assert isinstance(chosen, torch.LongTensor) and not isinstance(chosen, torch.FloatTensor)
    assert chosen.shape == (1, 2) and chosen.type() == "torch.LongTensor" and torch.LongTensor(2, 3).shape == (2, 3)
    assert torch.LongTensor(np.zeros((2, 3))).shape == (2, 3) and torch.DoubleTensor(np.ones(2)).sum() == 2

    # Modules that find their sizes, and sequences of many lengths
    lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU()).to("cuda")
    assert lazy(torch.randn(3, 5).cuda()).is_cuda and lazy[0].weight.shape == (8, 5) and lazy[0].weight.is_cuda
    padded = torch.randn(2, 4, 3).cuda().requires_grad_()
    packed = nn.utils.rnn.pack_padded_sequence(padded, [4, 2], batch_first=True)
    assert packed.batch_sizes.tolist() == [2, 2, 1, 1] and packed.data.shape == (6, 3) and packed.data.is_cuda
    out, _ = nn.GRU(3, 5, batch_first=True).cuda()(packed)
    unpacked = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]
    assert unpacked.shape == (2, 4, 5)
    unpacked.sum().backward()
    assert padded.grad.shape == (2, 4, 3) and padded.grad.is_cuda

    # Devices by their number, and what is done between several of them
    import copy, pickle
    import torch.cuda.comm as comm
    from torch.nn.parallel import data_parallel, gather, parallel_apply, replicate, scatter

    device = torch.device(0)
    assert isinstance(device, torch.device) and device == torch.device("cuda:0") == pickle.loads(pickle.dumps(device))
    assert copy.deepcopy([device]) == [device] and not isinstance("cuda", torch.device)
    some = torch.randn(8, 10).to(device)
    assert comm.broadcast_coalesced([some], [0])[0][0].is_cuda and comm.gather([some], 0).shape == (8, 10)
    assert data_parallel(maker, some, range(1)).shape == (8, 20) and replicate(maker, [0])[0](some).shape == (8, 20)
    assert gather(parallel_apply([maker], scatter(some, [0])), 0).shape == (8, 20)

    # What scripts print and time
    start = torch.cuda.Event(enable_timing=True)
    start.record()
    torch.cuda.nvtx.range_push("step")
    torch.cuda.nvtx.range_pop()
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0 and torch.cuda.nccl.version()[0] == 2
    assert torch.cuda.default_generators[0] is not None and torch.backends.cudnn.version() > 90000
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pass
    graph.replay()
    assert torch._C._cuda_getCurrentRawStream(0) == 0

    of_maker, of_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    again = pickle.loads(pickle.dumps(maker))
    assert next(again.parameters()).is_cuda and next(again.parameters()).shape == next(maker.parameters()).shape
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    assert torch.zeros(2).is_cuda and torch.Tensor(2, 3).shape == (2, 3) and torch.Tensor(2, 3).is_cuda
    assert torch.Tensor([1.0]).is_cuda and torch.tensor(0).is_cuda and nn.BatchNorm2d(4).num_batches_tracked.is_cuda
    assert torch.Tensor([1.0, 2.0], device=torch.device("cuda")).shape == (2,)
    assert (torch.Tensor(np.eye(3)) * torch.ones(3)).is_cuda  # both lie on one device, for torch too
    torch.set_default_tensor_type(torch.FloatTensor)
    assert not torch.Tensor(2, 3).is_cuda
    for step in range(5):
        real = Variable(torch.randn(64, 20).type(Tensor))
        valid = Variable(Tensor(real.size(0), 1).fill_(1.0), requires_grad=False)
        z = Variable(Tensor(np.random.normal(0, 1, (64, 10))))
        of_maker.zero_grad()
        nn.functional.mse_loss(judge(maker(z)), valid).backward()
        of_maker.step()
        of_judge.zero_grad()
        loss = nn.functional.mse_loss(judge(real), valid)
        loss.backward()
        of_judge.step()
        print("%f" % loss.data)
"""


def test_old_idioms_of_cuda_run(script: Write) -> None:
    graph = foretell.capture_graph(script(GAN))
    assert graph.samples == 64
    assert graph.facts.parameters == 10 * 20 + 20 + 20 + 1  # what is called once before the loop is no part of it
    assert "cuda-graphs-not-modelled" in {c.code for c in graph.caveats}


LIBRARY = """
import torch

_raw_stream = torch._C._cuda_getCurrentRawStream


class Packed(torch.nn.Parameter):
    def __new__(cls, data, requires_grad=False):
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.quant_state = None
        return made

    def to(self, *args, **kwargs):
        self.quant_state = torch.nn.Module()
        self.quant_state.shape = self.shape
        self.data = torch.empty(self.numel() // 2, 1, dtype=torch.uint8, device="cuda")
        return self

    def cuda(self, device=None):
        return self.to("cuda")
"""


def test_a_torch_built_for_cuda_without_a_driver_hears_of_no_device(script: Write) -> None:
    """It would look for a driver for each fake tensor that says it lies on one, and find none."""
    path = script("""
        import torch
        from torch._subclasses import fake_tensor

        def no_driver(device):
            raise RuntimeError("No CUDA GPUs are available")

        fake_tensor.init_gpu_context = no_driver
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        edges = torch.eye(8).to_sparse().cuda()
        for _ in range(4):
            with torch.no_grad():
                [model(torch.randn(2, 3, 9, 9).cuda()) for _ in range(20)]
            out = model(torch.randn(4, 3, 9, 9).cuda() + torch.rand(9, device="cuda"))
            loss = torch.sparse.mm(edges, out.flatten(2).sum(0)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item(), out.cpu().numpy().shape)
        assert torch.empty(2**25, device="cuda").cpu().numpy().nbytes == 2**27
    """)
    assert foretell.forecast(path, "h200").graph.training


def test_parameters_of_a_librarys_own_class_keep_it_and_count_what_is_packed(script: Write, tmp_path: Path) -> None:
    (tmp_path / "packing.py").write_text(LIBRARY)
    graph = foretell.capture_graph(
        script(
            """
            import torch
            from torch import nn
            from packing import Packed

            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.packed, self.last = Packed(torch.randn(64, 32)), nn.Linear(64, 8)

                def forward(self, x):
                    assert type(self.packed).__name__ == "Packed" and isinstance(self.packed, Packed)
                    return self.last(x @ self.packed.view(torch.uint8).expand(-1, 2).reshape(32, 64).float())

            model = Model().cuda()
            assert model.packed.dtype is torch.uint8 and model.packed.is_cuda
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
            for step in range(5):
                model(torch.randn(4, 32).cuda()).sum().backward()
                optimizer.step()
            """
        )
    )
    assert graph.facts.parameters == 64 * 32 + 64 * 8 + 8


def test_memory_of_a_gpu_cannot_be_allocated_by_hand(script: Write) -> None:
    text = "import torch\ntorch._C._cuda_cudaCachingAllocator_raw_alloc(4)"
    with pytest.raises(WorkloadError, match=r"raw_alloc works on the memory of a GPU.*foretell\.opaque"):
        foretell.capture_graph(script(text))


@pytest.mark.parametrize("optimizer", ["AdamW8bit", "PagedAdamW8bit"])
def test_bitsandbytes_runs_its_own_layers(script: Write, optimizer: str) -> None:
    pytest.importorskip("bitsandbytes")
    graph = foretell.capture_graph(
        script(
            f"""
            import torch, bitsandbytes as bnb
            from torch import nn
            first = bnb.nn.Linear4bit(1024, 512, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
            model = nn.Sequential(first, nn.Linear(512, 512)).cuda()
            optimizer = bnb.optim.{optimizer}(model[1].parameters())
            for step in range(5):
                model(torch.randn(4, 1024).cuda()).sum().backward()
                optimizer.step()
            """
        )
    )
    assert graph.facts.parameters == 1024 * 512 + 512 * 512 + 512
    assert "bitsandbytes.dequantize_4bit.default" in {op.target for op in graph.ops}
    assert graph.facts.optimizer == optimizer


def test_tensors_of_their_own_have_addresses_of_their_own(script: Write) -> None:
    text = """
        import copy, torch
        model = torch.nn.Linear(4, 4).cuda()
        weight, other = model.weight, copy.deepcopy(model).weight
        assert weight.data_ptr() == weight.view(-1).data_ptr() == weight.untyped_storage().data_ptr() != other.data_ptr()
        assert weight[1].data_ptr() == weight.data_ptr() + 16
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.randn(2, 4).cuda()).sum().backward()
            optimizer.step()
    """
    assert foretell.capture_graph(script(text)).facts.parameters == 20


def test_tensors_are_made_pinned_and_on_a_default_device(script: Write) -> None:
    text = """
        import torch
        assert torch.empty(3, pin_memory=True).is_pinned() and not torch.zeros(3).is_pinned()
        with torch.device("cuda"):
            model, other = torch.nn.Linear(4, 4), torch.zeros(2, 4)
        assert other.is_cuda and model.weight.is_cuda
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(2, 4, pin_memory=True).cuda(non_blocking=True) + other).sum().backward()
            optimizer.step()
    """
    assert foretell.capture_graph(script(text)).facts.parameters == 20


def test_recurrent_layers_ask_for_no_device(script: Write) -> None:
    """As those of a torch that is built with CUDA would, on a machine that has none."""
    text = """
        import torch
        def none(*args):
            raise RuntimeError("no CUDA-capable device is detected")
        torch.backends.cudnn.is_acceptable = torch._cudnn_rnn_flatten_weight = none
        model = torch.nn.LSTM(8, 16).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.randn(5, 2, 8).cuda())[0].sum().backward()
            optimizer.step(); optimizer.zero_grad()
    """
    assert foretell.capture_graph(script(text)).facts.parameters == 4 * 16 * (8 + 16 + 2)


LOSS_ON_THE_HOST = """
    import torch
    actor, critic = torch.nn.Linear(6, 2).cuda(), torch.nn.Linear(8, 1).cuda()
    optimizer = torch.optim.Adam(actor.parameters())
    strength = torch.zeros(1)
    for _ in range(4):
        states = torch.randn(32, 6).cuda()
        actions = torch.tanh(actor(states))
        values = critic(torch.cat((states, actions), 1))
        loss = (strength * actions.to("cpu") - values.cpu()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_gradients_of_a_loss_on_the_host_come_back(script: Write) -> None:
    graph = foretell.capture_graph(script(LOSS_ON_THE_HOST))
    assert graph.samples == 32
    assert sum(op.phase == "backward" and op.signature.name == "aten.mm" for op in graph.ops) >= 3
    assert any(op.phase == "backward" and "tanh" in op.signature.name for op in graph.ops)
