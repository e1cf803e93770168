"""Emulated hosts: network namespaces of one machine, joined by links of a limited rate, that train for real."""
