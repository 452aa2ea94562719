"""Tests of the models that are measured."""
