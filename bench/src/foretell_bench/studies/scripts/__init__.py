"""Training scripts as they are: measured on a device, forecast, and compared with Workloads written by hand."""
