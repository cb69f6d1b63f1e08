"""Kernels in C for a CPU, compiled where they run, and in Triton for CUDA."""
