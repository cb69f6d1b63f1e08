"""Processes, threads, locks, file descriptors and signals."""
