"""``[model.tiny]``: how large the model is that a training file has built."""

from typing import Any

import pytest

from adjudge.errors import ConfigError
from adjudge_lab.judge_training.judge_file import JudgeFile


def read(model: dict[str, Any], method: str = "bradley_terry") -> JudgeFile:
    data = {"method": method, "model": model, "data": {"synthetic": {"n": 20}}}
    return JudgeFile.from_dict(data, environ={})


def test_it_has_a_size_whether_the_file_says_one_or_not() -> None:
    plain, wide = read({"path": "tiny"}), read({"path": "tiny", "tiny": {"hidden": 128}})
    assert plain.model.tiny is None
    assert plain.model.size.model_dump() == {"hidden": 64, "layers": 2}
    assert wide.model.size.model_dump() == {"hidden": 128, "layers": 2}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"path": "m/m", "tiny": {}}, "path = 'm/m' names an existing model"),
        ({"tiny": {}}, "path = './models/Qwen3-8B' names an existing model"),
        ({"path": "tiny", "tiny": {"hidden": 12}}, r"model\.tiny\.hidden"),
        ({"path": "tiny", "tiny": {"hidden": 0}}, r"model\.tiny\.hidden"),
        ({"path": "tiny", "tiny": {"layers": 0}}, r"model\.tiny\.layers"),
        ({"path": "tiny", "tiny": {"heads": 2}}, r"model\.tiny\.heads"),
    ],
)
def test_a_size_that_is_none_or_of_a_model_that_there_is_is_refused(
    model: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(model)
