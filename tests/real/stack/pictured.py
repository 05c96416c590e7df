"""NeMo-RL's workers and one plain process over rows that begin with a picture.

LLaVA with random weights; a row's prompt is the four tokens of its picture.
"""

from pathlib import Path
from typing import Any

import configs
import cpu_vlm
import drawn
import torch
import transformers
from driver import Driver
from plain import Plain
from torch import Tensor
from workers import Workers


def saved(folder: Path) -> Path:
    """The model and its processor in folder/llava; made at the first call."""
    path = folder / "llava"
    if not (path / "config.json").exists():
        processor = cpu_vlm.processor()
        torch.manual_seed(0)
        cpu_vlm.model(image_token(processor)).save_pretrained(path)
        processor.save_pretrained(path)
    return path


def image_token(processor: Any) -> int:
    return processor.tokenizer.convert_tokens_to_ids("<image>")


def pictures() -> Tensor:
    """[B,3,H,W], one a row."""
    random = torch.Generator().manual_seed(3)
    return torch.randn(configs.ROWS, 3, cpu_vlm.SIDE, cpu_vlm.SIDE, generator=random)


class Pictured(Driver):
    """A Driver whose rows have pictures."""

    def made(self, cluster: Any, config: Any, tokenizer: Any, **kwargs: Any) -> Any:
        from nemo_rl.algorithms.utils import get_tokenizer

        processor = get_tokenizer(config["tokenizer"], get_processor=True)
        return Workers.made(self, cluster, config, tokenizer, processor=processor, **kwargs)

    def batch_of(self, model: Path, width: int) -> Any:
        from nemo_rl.data.multimodal_utils import PackedTensor

        token = image_token(transformers.AutoProcessor.from_pretrained(model))
        data = drawn.batch(token, width)
        data["input_ids"][:, : cpu_vlm.TOKENS] = token
        data["pixel_values"] = PackedTensor(list(pictures().split(1)), dim_to_pack=0)
        return data

    def reset(self) -> None:
        super().reset()
        self.plain = Pictures(self.start, self.config, self.ids)

    def blind(self) -> float:
        """How far log-probs of later tokens move where each row has the next one's picture."""
        from nemo_rl.data.multimodal_utils import PackedTensor

        before, kept = self.forward()[0], self.data["pixel_values"]
        self.data["pixel_values"] = PackedTensor(list(pictures().roll(1, 0).split(1)), 0)
        after = self.forward()[0]
        self.data["pixel_values"] = kept
        return self.apart(before, after)


class Pictures(Plain):
    """The plain process; a row's picture is found by its ids."""

    def __init__(self, start: Path, policy: dict[str, Any], ids: Tensor) -> None:
        super().__init__(start, policy, {})
        self.ids = ids

    def _numbers(self, model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = (ids[:, None] == self.ids).all(-1).int().argmax(1)
        return super()._numbers(lambda x: model(x, pixel_values=pictures()[rows]), ids)

    def _named(self, model: Any) -> dict[str, Tensor]:
        return compared(model.state_dict())  # LLaVA has other names on disk, and vLLM takes both

    def apart(self, weights: dict[str, Tensor], terms: int) -> float:
        return super().apart(compared(weights), terms)


def compared(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """All but CLIP's bias of keys, which attention does not depend on: its gradient is rounding."""
    return {name: x for name, x in weights.items() if not name.endswith("k_proj.bias")}
