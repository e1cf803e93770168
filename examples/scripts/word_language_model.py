"""An LSTM over words with truncated backpropagation, in the style of PyTorch's examples: a corpus on the device, no loader."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser(description="LSTM language model")
parser.add_argument("--emsize", type=int, default=650)
parser.add_argument("--nhid", type=int, default=650)
parser.add_argument("--nlayers", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--bptt", type=int, default=35)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--words", type=int, default=33_278)
args = parser.parse_args()
torch.manual_seed(1111)
device = torch.device("cuda")


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(args.words, args.emsize)
        self.rnn = nn.LSTM(args.emsize, args.nhid, args.nlayers, dropout=0.2)
        self.decoder = nn.Linear(args.nhid, args.words)

    def forward(self, tokens, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return nn.functional.log_softmax(self.decoder(self.drop(out)).view(-1, args.words), dim=1), hidden

    def init_hidden(self, batch):
        weight = next(self.parameters())
        return tuple(weight.new_zeros(args.nlayers, batch, args.nhid) for _ in range(2))


def batchify(data, batch):
    length = data.size(0) // batch
    return data.narrow(0, 0, length * batch).view(batch, -1).t().contiguous().to(device)


corpus = batchify(torch.randint(args.words, (2_000_000,)), args.batch_size)
model = RNNModel().to(device)
criterion = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
model.train()
hidden = model.init_hidden(args.batch_size)
for number, i in enumerate(range(0, corpus.size(0) - 1 - args.bptt, args.bptt)):
    data, targets = corpus[i : i + args.bptt], corpus[i + 1 : i + 1 + args.bptt].reshape(-1)
    hidden = tuple(h.detach() for h in hidden)
    model.zero_grad()
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    if number % 200 == 0:
        print(f"batch {number} loss {loss.item():5.2f}")
