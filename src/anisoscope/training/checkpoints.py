"""What all trainings share of the Trainer: checkpoints taken up as the best or to go on with, and the device."""

from typing import Any

from transformers import Trainer

from anisoscope.errors import UsageError
from anisoscope.models.load import device_of


def check_device(name: str) -> None:
    """ModelError unless it is there, UsageError for one of several of its kind, which the Trainer does not choose."""
    if device_of(name).index is not None:
        raise UsageError("a kind of device, cpu or cuda", repr(name), "choose the card by CUDA_VISIBLE_DEVICES")


class FaithfulTrainer(Trainer):
    """Takes weights up by `from_pretrained`. The library's own way reads the names of the file, and where a model saves
    its weights under other names than it holds them, as ViT does, leaves those as they are, with a warning.
    """

    def _load_best_model(self) -> None:
        self._take_up(self.state.best_model_checkpoint, self.model)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self._take_up(resume_from_checkpoint, self.model if model is None else model)

    def _take_up(self, folder: str | None, model: Any) -> None:
        if folder is not None:
            model.load_state_dict(type(model).from_pretrained(folder).state_dict())
