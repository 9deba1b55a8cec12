"""Figures that several recipes about toys draw."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from topic_probe.paper.recipe import RecipeResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def block_figure(result: RecipeResult, kind: str, *, title: str, **chosen: Any) -> "Figure":
    """A heat map of every setting that was measured, in their order; ``chosen`` is which matrix."""
    from topic_probe.show.figures import block_panels

    return block_panels(result.reports[kind], title=title, **chosen)


def loss_figure(result: RecipeResult) -> "Figure":
    """The loss of every training, with guessing, the best possible, and the floor of its regime."""
    from topic_probe.show.figures import loss_curve
    from topic_probe.show.style import panels

    agreements: dict[str, Any] = dict(result.reports["agreement"])
    draw: list[Callable[[Axes], Any]] = [
        partial(
            loss_curve,
            trained.history,
            floors=agreements.get(trained.setting.name),
            title=trained.setting.name,
        )
        for trained in result.runs
    ]
    return panels(draw, columns=4, size=(4.2, 3.0))


def blocks_and_losses(result: RecipeResult, kind: str, *, title: str, **chosen: Any) -> "dict[str, Figure]":
    """Both, under their names."""
    return {"blocks": block_figure(result, kind, title=title, **chosen), "losses": loss_figure(result)}
