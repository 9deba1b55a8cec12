"""Every figure by its name.

Figures draw what reports hold. They take ``ax=None`` and return the `matplotlib.axes.Axes` they drew on; ``.figure`` of
it can be saved as svg, png or pdf with any backend. No pyplot and no global setting is involved, so in a notebook it is
``report.plot().figure`` that is shown.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topic_probe.show.bars import contrast_bars as contrast_bars
    from topic_probe.show.bars import loss_scale as loss_scale
    from topic_probe.show.bars import matched_forest as matched_forest
    from topic_probe.show.blocks import block_map as block_map
    from topic_probe.show.blocks import block_panels as block_panels
    from topic_probe.show.comparison import comparison_forest as comparison_forest
    from topic_probe.show.comparison import comparison_panels as comparison_panels
    from topic_probe.show.curves import attention_curves as attention_curves
    from topic_probe.show.curves import history_curves as history_curves
    from topic_probe.show.curves import loss_curve as loss_curve
    from topic_probe.show.curves import norm_curves as norm_curves
    from topic_probe.show.curves import rotation_curve as rotation_curve
    from topic_probe.show.curves import stage_map as stage_map
    from topic_probe.show.curves import training_panels as training_panels
    from topic_probe.show.effects import effect_forest as effect_forest
    from topic_probe.show.effects import effect_scatter as effect_scatter
    from topic_probe.show.heads import head_map as head_map
    from topic_probe.show.landscape import landscape_panels as landscape_panels
    from topic_probe.show.landscape import loss_landscape as loss_landscape
    from topic_probe.show.series import series_curves as series_curves
    from topic_probe.show.series import series_heads as series_heads

# Module -> its figures. They are imported when they are needed: each knows the reports that it draws.
_FIGURES = {
    "bars": ("contrast_bars", "loss_scale", "matched_forest"),
    "blocks": ("block_map", "block_panels"),
    "comparison": ("comparison_forest", "comparison_panels"),
    "curves": (
        "attention_curves", "history_curves", "loss_curve", "norm_curves", "rotation_curve",
        "stage_map", "training_panels",
    ),
    "effects": ("effect_forest", "effect_scatter"),
    "heads": ("head_map",),
    "landscape": ("landscape_panels", "loss_landscape"),
    "series": ("series_curves", "series_heads"),
}  # fmt: skip
_MODULES = {name: module for module, names in _FIGURES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Load a figure from its module on first use."""
    if name not in _MODULES:
        raise AttributeError(f"there is no figure {name!r}; there are {', '.join(_MODULES)}")
    figure = getattr(import_module(f"topic_probe.show.{_MODULES[name]}"), name)
    globals()[name] = figure
    return figure


def __dir__() -> list[str]:
    return __all__
