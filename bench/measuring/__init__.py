"""How figures are taken: times and their floor, accuracy against float64, stages of a compile."""
