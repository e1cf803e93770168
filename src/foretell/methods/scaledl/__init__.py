"""ScaleDL: a nonlinear model per layer type, and a graph network across layers."""
