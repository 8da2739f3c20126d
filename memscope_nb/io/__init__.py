"""Readers: one module a format, each turning files into the tables of the model."""

from .load import discover, load

__all__ = ["discover", "load"]
