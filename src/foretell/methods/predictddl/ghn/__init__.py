"""A graph hypernetwork after GHN-2: it reads a network as a graph and writes its weights; its states describe the network.

`architecture.py` is what it reads, `gated.py` how messages travel, `hypernetwork.py` the whole, `generator.py` and
`run.py` the networks it learns on, `train.py` the command that trains it, `vocabulary.py` how captured steps are read.
"""
