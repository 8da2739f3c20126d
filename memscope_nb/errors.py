"""What can go wrong, told so that the reader knows what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


class MemscopeError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(MemscopeError):
    """A path or file cannot be used: says where, what was expected and what to do."""


class MissingFactError(MemscopeError):
    """A recording lacks a fact that an analysis needs; names the recorder setting that provides it."""


class ValidationError(MemscopeError):
    """A table breaks its schema.

    Attributes
    ----------
    failures : pandas.DataFrame
        One row per failure: ``table``, ``column``, ``check``, ``row``, ``value``.
    """

    def __init__(self, message: str, failures: pd.DataFrame) -> None:
        super().__init__(message)
        self.failures = failures
