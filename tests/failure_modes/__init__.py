"""One test a row of the list of what goes wrong with several streams in a CUDA graph."""
