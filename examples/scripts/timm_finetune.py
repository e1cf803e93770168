"""Fine-tuning in timm's style: its optimizers, mixup, layer-wise rates, a moving average, channels last, bf16."""

import argparse

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, dispatch_clip_grad

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="convnext_tiny")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--img-size", type=int, default=224)
parser.add_argument("--classes", type=int, default=200)
parser.add_argument("--opt", default="adamw")
parser.add_argument("--layer-decay", type=float, default=0.75)
parser.add_argument("--clip-grad", type=float, default=1.0)
options = parser.parse_args()


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return torch.full((3, options.img_size, options.img_size), (i % 255) / 255), i % options.classes


def train():
    device = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    model = timm.create_model(options.model, pretrained=False, num_classes=options.classes, drop_path_rate=0.1)
    model = model.to(device, memory_format=torch.channels_last)
    ema = ModelEmaV3(model, decay=0.9998)
    optimizer = create_optimizer_v2(
        model, opt=options.opt, lr=5e-4, weight_decay=0.05, layer_decay=options.layer_decay, foreach=True
    )
    schedule = CosineLRScheduler(optimizer, t_initial=10_000, warmup_t=500, t_in_epochs=False)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=0.0, label_smoothing=0.1, num_classes=options.classes)
    criterion, losses = SoftTargetCrossEntropy(), AverageMeter()
    loader = torch.utils.data.DataLoader(
        Pictures(), batch_size=options.batch_size, shuffle=True, num_workers=12, pin_memory=True, drop_last=True
    )
    model.train()
    for update, (pictures, labels) in enumerate(loader):
        pictures = pictures.to(device, non_blocking=True, memory_format=torch.channels_last)
        pictures, labels = mixup(pictures, labels.to(device, non_blocking=True))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), options.clip_grad)
        optimizer.step()
        ema.update(model, step=update)
        schedule.step_update(update)
        if update % 50 == 0:
            losses.update(loss.item(), pictures.size(0))
            print(f"{update}: {losses.avg:.3f}")


if __name__ == "__main__":
    train()
