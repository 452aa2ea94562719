"""Models that the benchmarks run and that torchvision does not have."""
