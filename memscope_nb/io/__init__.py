"""Readers: one module a format, each turning files into the tables of the model."""

from .catalog import Catalog, scan
from .discover import discover
from .loader import load

__all__ = ["Catalog", "discover", "load", "scan"]
