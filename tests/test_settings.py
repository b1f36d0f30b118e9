"""Environment variables: each is read when it is needed, validated, and named in its error."""

from pathlib import Path

import pytest

import sepconv
from sepconv import settings
from sepconv.errors import SettingError


@pytest.mark.parametrize("text", ["not a name", "3", "eager,cpu", " "])
def test_a_backend_that_is_no_name(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SEPCONV_BACKEND", text)
    with pytest.raises(SettingError, match="`SEPCONV_BACKEND`") as caught:
        settings.BACKEND.read()
    assert repr(text) in str(caught.value)
    assert "expected" in str(caught.value)
    assert isinstance(caught.value, sepconv.SepconvError)
    assert isinstance(caught.value, ValueError)


def test_a_folder_under_a_home_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPCONV_CACHE_DIR", "~no-such-user/cache")
    with pytest.raises(SettingError, match="`SEPCONV_CACHE_DIR` is '~no-such-user/cache'; expected a folder"):
        settings.cache_dir()


def test_unset_and_empty_mean_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in settings.ALL:
        monkeypatch.delenv(setting.name, raising=False)
        assert setting.read() == setting.default
        monkeypatch.setenv(setting.name, "")
        assert setting.read() == setting.default


def test_a_value_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEPCONV_BACKEND", "eager")
    assert settings.BACKEND.read() == "eager"
    monkeypatch.setenv("SEPCONV_BACKEND", "other")
    assert settings.BACKEND.read() == "other"


def test_the_folder_for_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SEPCONV_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert settings.cache_dir() == tmp_path / "xdg" / "sepconv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.cache_dir() == tmp_path / ".cache" / "sepconv"
    monkeypatch.setenv("SEPCONV_CACHE_DIR", "~/elsewhere")
    assert settings.cache_dir() == tmp_path / "elsewhere"
    assert not list(tmp_path.iterdir()), "asking for the folder made one"


def test_every_setting_is_documented_and_named_alike() -> None:
    names = [setting.name for setting in settings.ALL]
    assert len(set(names)) == len(names)
    for setting in settings.ALL:
        assert setting.name.startswith("SEPCONV_")
        assert len(setting.meaning) > 20


def test_no_other_file_reads_the_environment() -> None:
    root = Path(settings.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text()
        if path.name != "settings.py" and ("os.environ" in text or "os.getenv" in text):
            assert "SEPCONV_" not in text, path
