"""A CUDA runtime that is simulated on the CPU, for PyTorch's CUDA build. See README.md."""
