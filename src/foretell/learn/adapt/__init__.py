"""Adaptation: step times of a machine, cluster or trainer become what makes forecasts fit it."""
