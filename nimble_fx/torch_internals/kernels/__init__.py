"""Kernels of cuDNN, oneDNN and Inductor; operators that must not be decomposed."""
