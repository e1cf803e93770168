"""The encoder of a graph hypernetwork after GHN-2: it reads a network as a graph; its states describe the network.

The whole, with the decoder that writes weights, is trained in the benchmarks: `python -m foretell_bench.research.ghn.train`.
"""
