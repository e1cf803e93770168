"""How sure forecasts are: errors of models on steps, devices and jobs that they had not seen."""
