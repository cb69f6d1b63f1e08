"""Kernels in C for a CPU, compiled where they run.

library.py      compiles and loads them
functions.py    calls them with tensors
kernels.c       includes the others, for each dtype
"""
