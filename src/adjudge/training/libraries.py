"""The heavy libraries of training, loaded once and kept quiet."""

from __future__ import annotations

import logging
import os
import warnings

from adjudge.errors import ConfigError

__all__ = ["load_libraries"]


def load_libraries(*, one_device: bool = True, hub: bool = False) -> None:
    """Load torch, transformers, datasets and TRL; raises :class:`ConfigError` where one is missing.

    ``one_device``: hide all GPUs but the first, for a trainer that sees several would split the
    model over them. ``hub``: something is to be fetched by its name; else the hub is not asked at
    all, unless ``HF_HUB_OFFLINE`` says so.
    """
    for name, value in (
        ("HF_HUB_OFFLINE", "0" if hub else "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("TRL_EXPERIMENTAL_SILENCE", "1"),
    ):
        os.environ.setdefault(name, value)
    if one_device:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        os.environ["CUDA_VISIBLE_DEVICES"] = seen.partition(",")[0]
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        import datasets  # noqa: PLC0415
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415
        import trl  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigError(
            f"adjudge train needs torch, transformers, datasets and trl ({error.name} is not "
            "installed): pip install 'adjudge[train]', or run `make demo-rl`"
        ) from None
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("trl").setLevel(logging.ERROR)
    if not torch.cuda.is_available():
        # At sizes that a CPU trains, a second thread costs more than it computes.
        torch.set_num_threads(1)
