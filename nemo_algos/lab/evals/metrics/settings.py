"""What can be chosen about the metrics."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nemo_algos.config import Section
from nemo_algos.lab.evals.server import EndpointModel

Similarity = Literal["tfidf", "rouge_l", "jaccard", "edit", "embedding"]
Threshold = Annotated[float, Field(gt=0, le=1)]
MOST_RESAMPLES = 100_000  # of 500 problems they take 400 MB


class Judge(EndpointModel):
    """The server that is asked how diverse the right responses to a problem are."""

    engine: Literal["endpoint"] = "endpoint"


class Measure(Section):
    """What is measured, and how.

    ucc_threshold: two right responses are one solution from this similarity on. QUATRO does not
    give its own: compare UCC only at equal settings, and look at the curve over `thresholds`.
    ucc_similarity: what decides it. linkage: see `cluster_sizes`. similarities: those measured.
    edit_unit: char is slow, and measured on edit_pairs pairs per problem. resamples, seed: of the
    intervals. embedding_model: sentence-transformers name or path. judge: of `gpt_diversity`, which
    is measured only where it is set.
    """

    ucc_similarity: Similarity = "tfidf"
    ucc_threshold: Threshold = 0.8
    thresholds: list[Threshold] = Field(default=[0.5, 0.6, 0.7, 0.8, 0.9])
    linkage: Literal["single", "complete"] = "single"
    similarities: list[Similarity] = Field(default=["tfidf", "rouge_l", "jaccard", "edit"])
    edit_unit: Literal["word", "char"] = "word"
    edit_pairs: int = Field(default=500, gt=0)
    self_bleu: bool = True
    embedding_model: str = ""
    judge: Judge | None = None
    resamples: int = Field(default=2000, gt=0, le=MOST_RESAMPLES)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if self.ucc_similarity not in self.similarities:
            raise ValueError(f"ucc_similarity={self.ucc_similarity} must be in `similarities`")
        if (self.ucc_similarity, self.edit_unit) == ("edit", "char"):
            raise ValueError("ucc_similarity=edit needs `edit_unit: word`")
        if ("embedding" in self.similarities) != bool(self.embedding_model):
            raise ValueError("embedding in `similarities` and `embedding_model` need each other")
        return self
