"""One test for each known problem with several streams in a CUDA graph."""
