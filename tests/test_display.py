"""What a notebook shows of a profile."""

from __future__ import annotations

import html
import re

import pytest

import memscope_nb as ms
from memscope_nb.errors import InputError


def test_show_is_a_sandboxed_frame_that_holds_everything(demo_profile):
    markup = ms.show(demo_profile, rank=1)._repr_html_()
    assert markup.count("<iframe") == 1
    assert 'sandbox="allow-scripts allow-downloads"' in markup
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', markup).group(1))
    assert page.lower().startswith("<!doctype html>")
    assert "src=" not in page[:3000]
    assert "Also there: rank 0 · NPU:0" in markup


def test_show_of_a_rank_that_is_not_there(demo_profile):
    with pytest.raises(InputError, match="there is: rank 0 · NPU:0, rank 1 · NPU:1"):
        ms.show(demo_profile, rank=5)


def test_profile_table(demo_profile):
    markup = demo_profile._repr_html_()
    assert markup.count("<tr") == 25  # head and 24 series
    assert "16 sources, 2 ranks, 3,380 blocks" in markup
    assert "54.0 GiB" in markup
