"""What tests share: models, judges, mutants, players. None of these files is a test."""
