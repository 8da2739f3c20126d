"""Readers: one module a format, each turning files into the tables of the model."""

from .discover import discover
from .loader import load
from .catalog import Catalog, scan

__all__ = ["Catalog", "discover", "load", "scan"]
