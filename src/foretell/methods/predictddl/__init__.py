"""PredictDDL: embeddings of a graph hypernetwork, and a regression on them."""
