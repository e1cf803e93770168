"""The hypernetwork of PredictDDL, trained: networks to learn on, the decoder that writes their weights, the command."""
