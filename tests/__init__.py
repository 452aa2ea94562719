"""The tests mirror the source; shared strategies and oracles are in folders of their own."""
