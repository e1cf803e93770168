"""ImageNet in the style of torchvision's reference: argparse, ImageFolder, DDP under torchrun, AMP, a moving average."""

import argparse
import datetime
import os
import time

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torchvision import transforms


class SmoothedValue:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total, self.count = self.total + value * n, self.count + n

    def synchronize_between_processes(self):
        if dist.is_initialized():
            t = torch.tensor([self.count, self.total], dtype=torch.float64, device="cuda")
            dist.barrier()
            dist.all_reduce(t)
            self.count, self.total = int(t[0].item()), t[1].item()

    def __str__(self):
        return f"{self.total / max(self.count, 1):.4f}"


def accuracy(output, target, topk=(1,)):
    with torch.inference_mode():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target[None])
        return [correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in topk]


def train_one_epoch(model, criterion, optimizer, loader, device, epoch, args, model_ema, scaler):
    model.train()
    loss_meter, top1 = SmoothedValue(), SmoothedValue()
    for i, (image, target) in enumerate(loader):
        start = time.time()
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        if model_ema and i % args.ema_steps == 0:
            model_ema.update_parameters(model)
        acc1, _ = accuracy(output, target, topk=(1, 5))
        loss_meter.update(loss.item())
        top1.update(acc1.item(), image.shape[0])
        print(f"epoch {epoch} {i} loss {loss_meter} top1 {top1} {image.shape[0] / (time.time() - start):.1f} img/s")


def evaluate(model, criterion, loader, device):
    model.eval()
    meter = SmoothedValue()
    with torch.inference_mode():
        for image, target in loader:
            image, target = image.to(device, non_blocking=True), target.to(device, non_blocking=True)
            meter.update(criterion(model(image), target).item())
    meter.synchronize_between_processes()
    print(f"Test: {meter}")


def main(args):
    args.distributed = "RANK" in os.environ
    if args.distributed:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(backend="nccl", init_method="env://")
        dist.barrier()
    os.makedirs(args.output_dir, exist_ok=True)
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    dataset = torchvision.datasets.ImageFolder(
        os.path.join(args.data_path, "train"),
        transforms.Compose(
            [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
        ),
    )
    sampler = (
        torch.utils.data.distributed.DistributedSampler(dataset)
        if args.distributed
        else torch.utils.data.RandomSampler(dataset)
    )
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=True
    )
    model = torchvision.models.get_model(args.model, weights=None, num_classes=len(dataset.classes)).to(device)
    if args.distributed and args.sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
    if args.distributed:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])])
    model_without_ddp = model.module if args.distributed else model
    model_ema = None
    if args.model_ema:
        model_ema = torch.optim.swa_utils.AveragedModel(
            model_without_ddp, device=device, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
        )
    start = time.time()
    for epoch in range(args.epochs):
        if args.distributed:
            sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, loader, device, epoch, args, model_ema, scaler)
        scheduler.step()
        evaluate(model, criterion, loader, device)
        torch.save({"model": model_without_ddp.state_dict()}, os.path.join(args.output_dir, "checkpoint.pth"))
    print(f"Training time {datetime.timedelta(seconds=int(time.time() - start))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Classification training")
    parser.add_argument("--data-path", default="/datasets/imagenet")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", default=32, type=int)
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("--workers", default=16, type=int)
    parser.add_argument("--output-dir", default="checkpoints")
    parser.add_argument("--sync-bn", action="store_true")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--model-ema", action="store_true")
    parser.add_argument("--ema-steps", type=int, default=1)
    main(parser.parse_args())
