"""What a notebook's first cells call."""

import json
import sys
import types

import pytest
from project import PROJECT

from fedlib import notebook


@pytest.fixture(autouse=True)
def fresh_session(monkeypatch):
    monkeypatch.setattr(notebook, "_described", False)


def test_setup_prints_one_line_once(capsys):
    notebook.setup("numpy", "scikit-learn")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"fedlib {PROJECT['version']} · Python 3.")
    assert "numpy " in line and "scikit-learn " in line and "CPU with" in line
    notebook.setup("numpy", "scikit-learn")
    assert capsys.readouterr().out == ""


def test_setup_names_what_is_missing(capsys):
    notebook.setup("no-such-distribution")
    assert "no-such-distribution missing" in capsys.readouterr().out


def test_the_device_is_named():
    assert notebook.device(use_torch=False).startswith("CPU with ")
    assert notebook.device(False) in ("CPU with 1 core",) or notebook.device(False).endswith(" cores")


def test_a_gpu_is_named_only_to_pages_that_use_torch(monkeypatch):
    cuda = types.SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "a fine GPU")
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert notebook.device(True) == "a fine GPU"
    assert notebook.device(False).startswith("CPU with ")


def test_a_scale_gives_its_settings():
    quick, full = {"rounds": 5}, {"rounds": 50}
    assert notebook.scale("quick", quick, full) == {"rounds": 5}
    assert notebook.scale("full", quick, full) == {"rounds": 50}


def test_bad_scales_are_refused():
    with pytest.raises(ValueError, match='"quick" or "full", got \'medium\''):
        notebook.scale("medium", {}, {})
    with pytest.raises(ValueError, match=r"only one sets \['lr', 'rounds'\]"):
        notebook.scale("quick", {"rounds": 1, "n": 2}, {"lr": 0.1, "n": 2})


def test_the_data_source_is_named():
    assert notebook.data_source() and "\n" not in notebook.data_source()


def test_the_cost_of_a_page_comes_from_the_committed_record(monkeypatch, tmp_path):
    (tmp_path / "records").mkdir()
    record = {"machine": "2 cores", "date": "2030-01-02",
              "notebooks": {"01_x": {"quick": {"seconds": 12.4, "peak_mb": 301.2},
                                     "full": {"seconds": 60.2, "peak_mb": 640}}}}  # fmt: skip
    (tmp_path / "records" / "timings.json").write_text(json.dumps(record))
    monkeypatch.setattr(notebook, "files", lambda package: tmp_path)
    sentence = notebook.cost("01_x")
    assert "12 s and 301 MB at scale quick" in sentence and "60 s and 640 MB at scale full" in sentence
    assert "2 cores" in sentence and "2030-01-02" in sentence
    assert "not been measured" in notebook.cost("99_other")


def test_the_real_record_can_be_read():
    assert notebook.cost("01_weighted_objective").endswith(".")


def test_colab_is_recognized_by_its_module(monkeypatch):
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    assert not notebook.on_colab()
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    assert notebook.on_colab()
