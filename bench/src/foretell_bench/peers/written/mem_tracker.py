"""What a user of torch's MemTracker writes: the step on fake tensors, under FSDP where the plan shards all."""

# mypy: ignore-errors
import json
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

question = json.load(sys.stdin)
half = {"bf16": torch.bfloat16, "fp16": torch.float16, "amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
dtype = half.get(question["precision"])
if question["zero"] == 3:
    from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=question["devices"])
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (question["devices"],))
with FakeTensorMode():
    if question["config"]:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(**question["config"])
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        batch = torch.zeros(question["batch"], question["seq"], dtype=torch.long)
    else:
        import torchvision

        model = torchvision.models.get_model(question["name"])
        batch = torch.randn(question["batch"], 3, question["image_size"], question["image_size"])
    if dtype is not None and not question["precision"].startswith("amp") and question["zero"] != 3:
        model = model.to(dtype)
    if question["zero"] == 3:
        policy = MixedPrecisionPolicy(param_dtype=dtype)
        for block in model.model.layers:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    if question["checkpointing"]:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        for step in range(2):  # the second finds the optimizer's state
            with torch.autocast("cpu", dtype=dtype, enabled=question["precision"].startswith("amp")):
                if question["config"]:
                    loss = model(input_ids=batch, labels=batch).loss
                else:
                    loss = torch.nn.functional.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                tracker.reset_mod_stats()
    peak = max(parts["Total"] for parts in tracker.get_tracker_snapshot("peak").values())
print(json.dumps({"memory": int(peak)}))
