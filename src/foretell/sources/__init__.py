"""Sources: names, files and configurations that people have, as Workloads."""
