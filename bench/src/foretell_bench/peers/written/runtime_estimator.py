"""What a user of torch's RuntimeEstimator writes: a micro-step on fake tensors, priced by the roofline of the GPU at hand."""

# mypy: ignore-errors
import json
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.runtime_estimator import RuntimeEstimator

question = json.load(sys.stdin)
half = {"bf16": torch.bfloat16, "fp16": torch.float16, "amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
dtype = half.get(question["precision"])
if not torch.cuda.is_available():
    raise SystemExit("it prices kernels by the GPU of this machine, and there is none")
with FakeTensorMode():
    if question["config"]:
        from transformers import AutoConfig, AutoModelForCausalLM

        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**question["config"])).to("cuda", dtype)
        batch = torch.zeros(question["batch"], question["seq"], dtype=torch.long, device="cuda")
    else:
        import torchvision

        model = torchvision.models.get_model(question["name"]).cuda()
        batch = torch.randn(question["batch"], 3, question["image_size"], question["image_size"], device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    estimator = RuntimeEstimator()
    with estimator("operator-level-cost-model"):
        with torch.autocast("cuda", dtype=dtype, enabled=question["precision"].startswith("amp")):
            loss = (
                model(input_ids=batch, labels=batch).loss
                if question["config"]
                else model(batch).float().logsumexp(1).mean()
            )
        loss.backward()
        optimizer.step()
print(json.dumps({"seconds": estimator.total_runtime / 1e3 * question["grad_accumulation"]}))
