"""Does a transformer treat words of the same topic differently? Where, how strongly, how sure are we?

The public names are loaded on first use, so that ``import topic_probe`` stays as cheap as ``import torch``
and a missing or broken optional package only hurts where it is needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topic_probe.contrast import Contrast as Contrast
    from topic_probe.lens.check import ModelCheck as ModelCheck
    from topic_probe.lens.check import check_model as check_model
    from topic_probe.lens.edit import cut_edges as cut_edges
    from topic_probe.lens.edit import edit_heads as edit_heads
    from topic_probe.lens.opening import open_model as open_model
    from topic_probe.lens.opening import random_init as random_init
    from topic_probe.measure.ablation import measure_ablation as measure_ablation
    from topic_probe.measure.attention import AttentionReport as AttentionReport
    from topic_probe.measure.attention import measure_attention as measure_attention
    from topic_probe.measure.comparison import ComparisonReport as ComparisonReport
    from topic_probe.measure.comparison import compare as compare
    from topic_probe.measure.comparison import compare_reports as compare_reports
    from topic_probe.measure.effects import EffectReport as EffectReport
    from topic_probe.measure.embeddings import EmbeddingReport as EmbeddingReport
    from topic_probe.measure.embeddings import measure_embeddings as measure_embeddings
    from topic_probe.measure.knockout import measure_knockout as measure_knockout
    from topic_probe.measure.matched import MatchedReport as MatchedReport
    from topic_probe.measure.matched import measure_matched as measure_matched
    from topic_probe.measure.matrix import MatrixReport as MatrixReport
    from topic_probe.measure.weights import WeightReport as WeightReport
    from topic_probe.measure.weights import measure_weights as measure_weights
    from topic_probe.paper import reproduce as reproduce
    from topic_probe.report import load_report as load_report
    from topic_probe.series.check import CheckpointReport as CheckpointReport
    from topic_probe.series.check import check_checkpoints as check_checkpoints
    from topic_probe.series.checkpoints import Checkpoints as Checkpoints
    from topic_probe.series.measured import SeriesReport as SeriesReport
    from topic_probe.series.probe import TopicProbe as TopicProbe
    from topic_probe.series.whole import measure_series as measure_series
    from topic_probe.show import figures as figures
    from topic_probe.show.attention_page import show_attention as show_attention
    from topic_probe.show.gallery import show_heads as show_heads
    from topic_probe.show.results_page import report_page as report_page
    from topic_probe.text.cooccurrence import Cooccurrence as Cooccurrence
    from topic_probe.text.cooccurrence import count_cooccurrence as count_cooccurrence
    from topic_probe.text.corpus import Corpus as Corpus
    from topic_probe.text.corpus import DocumentStream as DocumentStream
    from topic_probe.text.documents import Document as Document
    from topic_probe.text.encoder import encode_texts as encode_texts
    from topic_probe.text.lda import TopicFit as TopicFit
    from topic_probe.text.lda import fit_topics as fit_topics
    from topic_probe.text.word_tokenizer import word_tokenizer as word_tokenizer
    from topic_probe.topics import Topics as Topics
    from topic_probe.topics.builtin import builtin_topics as builtin_topics
    from topic_probe.toy import theory as theory
    from topic_probe.toy.agreement import AgreementReport as AgreementReport
    from topic_probe.toy.agreement import measure_agreement as measure_agreement
    from topic_probe.toy.landscape import LandscapeReport as LandscapeReport
    from topic_probe.toy.landscape import measure_landscape as measure_landscape
    from topic_probe.toy.masking import Masking as Masking
    from topic_probe.toy.model import ToyConfig as ToyConfig
    from topic_probe.toy.model import build_toy as build_toy
    from topic_probe.toy.model import toy_tensors as toy_tensors
    from topic_probe.toy.word_attention import word_attention as word_attention
    from topic_probe.toy.world import World as World
    from topic_probe.train.bert import TextConfig as TextConfig
    from topic_probe.train.bert import build_bert as build_bert
    from topic_probe.train.history import History as History
    from topic_probe.train.history import TrainConfig as TrainConfig
    from topic_probe.train.stages import DynamicsReport as DynamicsReport
    from topic_probe.train.stages import measure_dynamics as measure_dynamics
    from topic_probe.train.text import train_text as train_text
    from topic_probe.train.toy import train_toy as train_toy
    from topic_probe.train.toy import train_toys as train_toys

__version__ = "0.1.0"

# Public name -> module that defines it; a name that is missing here is not public.
_PUBLIC = {
    "AgreementReport": "topic_probe.toy.agreement",
    "AttentionReport": "topic_probe.measure.attention",
    "CheckpointReport": "topic_probe.series.check",
    "Checkpoints": "topic_probe.series.checkpoints",
    "ComparisonReport": "topic_probe.measure.comparison",
    "Contrast": "topic_probe.contrast",
    "Cooccurrence": "topic_probe.text.cooccurrence",
    "Corpus": "topic_probe.text.corpus",
    "Document": "topic_probe.text.documents",
    "DocumentStream": "topic_probe.text.corpus",
    "DynamicsReport": "topic_probe.train.stages",
    "EffectReport": "topic_probe.measure.effects",
    "EmbeddingReport": "topic_probe.measure.embeddings",
    "History": "topic_probe.train.history",
    "LandscapeReport": "topic_probe.toy.landscape",
    "Masking": "topic_probe.toy.masking",
    "MatchedReport": "topic_probe.measure.matched",
    "MatrixReport": "topic_probe.measure.matrix",
    "ModelCheck": "topic_probe.lens.check",
    "TextConfig": "topic_probe.train.bert",
    "SeriesReport": "topic_probe.series.measured",
    "TopicFit": "topic_probe.text.lda",
    "TopicProbe": "topic_probe.series.probe",
    "Topics": "topic_probe.topics",
    "ToyConfig": "topic_probe.toy.model",
    "TrainConfig": "topic_probe.train.history",
    "WeightReport": "topic_probe.measure.weights",
    "World": "topic_probe.toy.world",
    "build_bert": "topic_probe.train.bert",
    "build_toy": "topic_probe.toy.model",
    "builtin_topics": "topic_probe.topics.builtin",
    "check_checkpoints": "topic_probe.series.check",
    "check_model": "topic_probe.lens.check",
    "compare": "topic_probe.measure.comparison",
    "compare_reports": "topic_probe.measure.comparison",
    "count_cooccurrence": "topic_probe.text.cooccurrence",
    "cut_edges": "topic_probe.lens.edit",
    "edit_heads": "topic_probe.lens.edit",
    "encode_texts": "topic_probe.text.encoder",
    "figures": "topic_probe.show.figures",
    "fit_topics": "topic_probe.text.lda",
    "load_report": "topic_probe.report",
    "measure_ablation": "topic_probe.measure.ablation",
    "measure_agreement": "topic_probe.toy.agreement",
    "measure_attention": "topic_probe.measure.attention",
    "measure_dynamics": "topic_probe.train.stages",
    "measure_embeddings": "topic_probe.measure.embeddings",
    "measure_knockout": "topic_probe.measure.knockout",
    "measure_landscape": "topic_probe.toy.landscape",
    "measure_matched": "topic_probe.measure.matched",
    "measure_series": "topic_probe.series.whole",
    "measure_weights": "topic_probe.measure.weights",
    "open_model": "topic_probe.lens.opening",
    "random_init": "topic_probe.lens.opening",
    "report_page": "topic_probe.show.results_page",
    "reproduce": "topic_probe.paper",
    "show_attention": "topic_probe.show.attention_page",
    "show_heads": "topic_probe.show.gallery",
    "theory": "topic_probe.toy.theory",
    "toy_tensors": "topic_probe.toy.model",
    "train_text": "topic_probe.train.text",
    "train_toy": "topic_probe.train.toy",
    "train_toys": "topic_probe.train.toy",
    "word_attention": "topic_probe.toy.word_attention",
    "word_tokenizer": "topic_probe.text.word_tokenizer",
}

# Public names that are modules.
_MODULES = {"figures", "theory"}

__all__ = [*sorted(_PUBLIC), "__version__"]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'topic_probe' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
