"""Results as rows, Markdown tables and plots, and published figures to compare with."""
