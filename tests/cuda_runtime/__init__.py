"""A CUDA runtime that is played on the CPU, for PyTorch's CUDA build. See README.md."""
