"""Pictures that are not on this machine, as scripts compute with what is in them."""

from __future__ import annotations

import foretell
from tests.capture.script.conftest import Write

SALIENT = """
    import glob, os
    import numpy as np, torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    class Salient(Dataset):
        def __init__(self):
            self.paths = glob.glob("train_data/im_aug/*.jpg")
        def __len__(self):
            return len(self.paths)
        def __getitem__(self, at):
            image = np.asarray(Image.open(self.paths[at]))[::-1]
            mask = np.array(Image.open(self.paths[at].replace("im_aug", "gt_aug").replace(".jpg", ".png")))[::-1]
            if np.max(mask) > 1e-6:
                mask = mask / np.max(mask)
            image = (image - image.mean((0, 1))) / image.std((0, 1))
            left, right = np.where(mask.any(0))[0][[0, -1]]
            assert right > left and np.isfinite(image).all()
            return torch.from_numpy(image / np.max(image)), torch.from_numpy(mask)

    model = torch.nn.Conv2d(3, 1, 3, padding=1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for image, mask in DataLoader(Salient(), batch_size=4):
        made = model(image.permute(0, 3, 1, 2).float().cuda())
        torch.nn.functional.binary_cross_entropy_with_logits(made[:, 0], mask.float().cuda()).backward()
        optimizer.step()
"""


def test_photos_vary_and_masks_show_something(script: Write) -> None:
    graph = foretell.capture_graph(script(SALIENT, fake_data=True))
    assert (graph.samples, graph.facts.parameters) == (4, 28)
