"""Which backbone a config names, and how it is imported."""

import gc
import sys
from types import SimpleNamespace

from ajet.backbones import BACKBONES, fit
from ajet.core.rollout.gc_thresholds import THRESHOLDS

MODULE = """
import gc

thresholds = gc.get_threshold()


def fit_noting(config, *, session, interrupt, gateway):
    return "trained"
"""


def test_a_backbone_is_imported_with_rare_collections_and_no_longer(tmp_path, monkeypatch):
    (tmp_path / "noting_backbone.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BACKBONES, "verl", "noting_backbone->fit_noting")
    before = gc.get_threshold()  # of whatever ran in this process before
    gc.set_threshold(700, 10, 10)
    try:
        section = SimpleNamespace(backbone="verl")
        found = fit(SimpleNamespace(ajet=section, clients_run_episodes=False))
        assert gc.get_threshold() == (700, 10, 10)
    finally:
        gc.set_threshold(*before)
    assert found == "trained"
    assert sys.modules.pop("noting_backbone").thresholds == THRESHOLDS
