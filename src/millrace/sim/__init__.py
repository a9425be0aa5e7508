"""The deterministic simulator: the real cores and codec on a simulated network, disk and clock.
Imports anything; only the command line imports it.
"""
