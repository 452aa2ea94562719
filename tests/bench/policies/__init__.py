"""Rival schedules."""
