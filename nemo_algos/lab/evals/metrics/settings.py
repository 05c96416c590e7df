"""What can be chosen about the metrics."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nemo_algos.config import Section
from nemo_algos.lab.evals.server import EndpointModel

Similarity = Literal["tfidf", "rouge_l", "jaccard", "edit", "embedding"]
Threshold = Annotated[float, Field(gt=0, le=1)]
MOST_RESAMPLES = 100_000  # of 500 problems they take 400 MB


class Judge(EndpointModel):
    """The server that rates how diverse the right responses to a problem are."""

    engine: Literal["endpoint"] = "endpoint"


class Measure(Section):
    """Which metrics are computed, and how."""

    ucc_similarity: Similarity = "tfidf"
    """The similarity that decides whether two right responses are one solution."""
    ucc_threshold: Threshold = 0.8
    """From this similarity on they are one. QUATRO does not state its own: compare UCC only at
    equal settings.
    """
    thresholds: list[Threshold] = Field(default=[0.5, 0.6, 0.7, 0.8, 0.9])
    """Thresholds of the UCC curve."""
    linkage: Literal["single", "complete"] = "single"
    """How similar pairs make solutions: any pair (single) or all pairs (complete)."""
    similarities: list[Similarity] = Field(default=["tfidf", "rouge_l", "jaccard", "edit"])
    """Similarities to compute."""
    edit_unit: Literal["word", "char"] = "word"
    """Unit of the edit similarity. char is slow, so it uses edit_pairs pairs per problem."""
    edit_pairs: int = Field(default=500, gt=0)
    """Pairs per problem with edit_unit: char."""
    self_bleu: bool = True
    """Whether to compute self-BLEU."""
    embedding_model: str = ""
    """A sentence-transformers model: name or path."""
    judge: Judge | None = None
    """The server for `gpt_diversity`, which is only computed if this is set."""
    resamples: int = Field(default=2000, gt=0, le=MOST_RESAMPLES)
    """Bootstrap samples of the intervals."""
    seed: int = Field(default=0, ge=0)
    """Seed of the bootstrap."""

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if self.ucc_similarity not in self.similarities:
            raise ValueError(f"ucc_similarity={self.ucc_similarity} must be in `similarities`")
        if (self.ucc_similarity, self.edit_unit) == ("edit", "char"):
            raise ValueError("ucc_similarity=edit needs `edit_unit: word`")
        if ("embedding" in self.similarities) != bool(self.embedding_model):
            raise ValueError("embedding in `similarities` and `embedding_model` need each other")
        return self
