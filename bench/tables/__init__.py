"""Results as rows, tables in Markdown and plots, with published figures beside."""
