"""Dynamo and AOTAutograd: their private names, calling convention, caches, errors and logs."""
