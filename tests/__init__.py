"""The tests mirror the source; the strategies and oracles that they share lie beside them."""
