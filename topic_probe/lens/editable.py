"""What can be edited of the heads of a model, and how: found out by trying it on a few tokens.

An edit of nothing has to change nothing, and every other edit something.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from topic_probe.lens import capture
from topic_probe.lens.capture import View
from topic_probe.lens.changes import HOWS, NO_CHANGE, Change, How, Outputs, cutting
from topic_probe.lens.huggingface import (
    BESIDE_SDPA,
    Way,
    output_difference,
    real_vectors,
    within_tolerance,
)
from topic_probe.lens.running import StillRunningError, evaluating
from topic_probe.lens.sites import Inputs, Site


@dataclass(frozen=True)
class Editable:
    """What a trial has shown of editing a model.

    Attributes:
        way: how; None where not at all.
        no_way: why not at all.
        no_edges: why edges cannot be cut; empty where they can.
        certain: whether the trial would show the same with other weights.
    """

    way: Way | None
    no_way: str = ""
    no_edges: str = ""
    certain: bool = True


def editable(known: View) -> Editable:
    """What can be edited of a model, found out once for a view of it."""
    if known.editable:
        return known.editable[0]  # type: ignore[no-any-return]
    with capture.without_hooks(known.model), evaluating(known.model):
        found = _try_ways(known)
    if found.certain:
        known.editable.append(found)
    return found


def _try_ways(known: View) -> Editable:
    """The best way to edit a model: one in which edges can be cut, too, where there is one."""
    host, inputs = known.host, known.host.trial_inputs()
    as_it_is = host.run_as_it_is(inputs)
    works: Editable | None = None
    reason = (
        "its layers do not call the attention interface of transformers, inside which heads are edited; where "
        "TransformerLens has an adapter for it, a bridge that you build may be edited"
    )
    for way in host.ways_to_edit(inputs, known.sites):
        try:
            found = _Trial(known, way, inputs).result(as_it_is)
        except StillRunningError:
            raise
        except Exception as error:  # it may fail in any way where its attention is not what it is taken for
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            continue
        works = works or found
        if not found.no_edges:
            return found
    return works or Editable(None, f"the heads of {host.name} cannot be edited: {reason}", certain=False)


class _Trial:
    """A way to edit a model, tried out on a few tokens, more than its windows hold."""

    def __init__(self, known: View, way: Way, inputs: Inputs) -> None:
        self.known, self.way, self.inputs = known, way, inputs
        self.host, self.sites = known.host, known.sites

    def result(self, as_it_is: Any) -> Editable:
        """What can be edited in this way.

        Args:
            as_it_is: the answer of the model that nothing was done to; None where reading it does nothing to it.

        Raises:
            ValueError: where heads cannot be edited.
        """
        outputs: dict[Site, Tensor] = {}
        intact = self.answer({site: Change(outputs=partial(_look, outputs, site)) for site in self.sites})
        self._check_shapes(outputs)
        if as_it_is is None:
            self._check_same(self.host.run(self.inputs), intact, "the model computes something else")
        else:
            self._check_as_it_is(as_it_is, intact)
        self._check_nothing(intact)
        for site in self.sites:
            self._check_constant(site, outputs[site], intact)
        unmoved = [site for how in HOWS for site in self._unmoved(how, outputs, intact)]
        # Where every position puts out the same, none can be seen to be read.
        deaf = [site for site in unmoved if not _same_everywhere(outputs[site])]
        return Editable(self.way, no_edges=self._deaf(deaf[0]) if deaf else "", certain=not unmoved)

    def answer(self, changes: Mapping[Site, Change]) -> Any:
        """The answer of the model with its heads edited."""
        with self.host.editing(self.way, lambda site: changes.get(site, NO_CHANGE)):
            return self.host.run(self.inputs)

    def _check_shapes(self, outputs: Mapping[Site, Tensor]) -> None:
        for site, heads in zip(self.sites, self.known.n_heads, strict=True):
            needed = (*self.inputs.masks(site)[0].shape, heads)
            got = tuple(outputs[site].shape) if site in outputs else "nothing"
            if got == "nothing" or len(got) != 4 or got[:3] != needed:
                raise ValueError(
                    f"{site.hook_name} needed to show outputs of heads of shape [{needed[0]}, {needed[1]}, "
                    f"{needed[2]}, d_head] before the output projection, got {got}"
                )

    def _check_as_it_is(self, as_it_is: Any, intact: Any) -> None:
        """The model computes what it does as it is; in half precision this may be hidden by rounding.

        The fused kernel is then taken only where it is known to show the same patterns.
        """
        difference = output_difference(as_it_is, intact, self.inputs)
        is_half = next(self.host.model.parameters()).dtype in (torch.float16, torch.bfloat16)
        rounding = is_half and (self.way.through != BESIDE_SDPA or self.known.tap is not None)
        if not within_tolerance(self.host.inside, difference) and not rounding:
            raise ValueError(
                f"it computes something else as it is than with the attention inside which heads are edited: its "
                f"outputs differ by {difference:.0e} of their length"
            )

    def _check_nothing(self, intact: Any) -> None:
        """An edit of nothing changes nothing, bit for bit."""
        for how in HOWS:
            nothing = {
                site: cutting(how, torch.zeros_like(diagonal)).then(Change(outputs=lambda given: given))
                for site, diagonal in self._diagonals()
            }
            self._check_same(
                intact, self.answer(nothing), "an edit of nothing changes the outputs of the model"
            )

    def _check_constant(self, site: Site, outputs: Tensor, intact: Any) -> None:
        """What is written into all heads of a site changes what the model puts out."""
        numbers = torch.linspace(1, 2, outputs.shape[3], dtype=outputs.dtype, device=outputs.device)
        constant = (numbers * (1 + outputs.abs().max())).expand_as(outputs)
        if self._same(intact, self.answer({site: Change(outputs=lambda _: constant)})):
            raise ValueError(
                f"what is written into the heads of {site.hook_name} changes nothing that the model puts out"
            )

    def _unmoved(self, how: How, outputs: Mapping[Site, Tensor], intact: Any) -> list[Site]:
        """Sites that put out the same when every key is cut but the query's own, and when this one is.

        Their intact outputs go on, so that every site gets what it gets in the intact model.
        """
        unmoved = list(self.sites)
        for whole in (True, False):
            seen: dict[Site, Tensor] = {}
            changes = {
                site: cutting(how, diagonal ^ whole).then(
                    Change(outputs=partial(_look, seen, site, instead=outputs[site]))
                )
                for site, diagonal in self._diagonals()
            }
            again = self.answer(changes)
            self._check_same(
                intact, again, "what replaces the outputs of heads does not go on in place of them"
            )
            unmoved = [site for site in unmoved if torch.equal(seen[site], outputs[site])]
        return unmoved

    def _diagonals(self) -> Iterator[tuple[Site, Tensor]]:
        for site in self.sites:
            queries, keys = self.inputs.masks(site)
            diagonal = torch.eye(queries.shape[1], keys.shape[1], dtype=torch.bool, device=keys.device)
            yield site, diagonal[None, None]

    def _same(self, one: Any, other: Any) -> bool:
        pairs = zip(*(real_vectors(answer, self.inputs) for answer in (one, other)), strict=True)
        return all(torch.equal(*pair) for pair in pairs)

    def _check_same(self, one: Any, other: Any, otherwise: str) -> None:
        if not self._same(one, other):
            raise ValueError(f"{otherwise} where heads are edited through {self.way.through}")

    def _deaf(self, site: Site) -> str:
        return (
            f"edges of {self.host.name} cannot be cut: what {site.hook_name} puts out is the same whatever is cut "
            "there, because the host computes it without looking at an edited pattern. Heads can be edited with "
            "edit_heads; where it wraps a Hugging Face model, topic_probe.open_model of that model cuts its edges"
        )


def _look(
    seen: dict[Site, Tensor], site: Site, outputs: Outputs, *, instead: Tensor | None = None
) -> Outputs:
    """Keeps what the heads of a site put out."""
    seen[site] = outputs
    return outputs if instead is None else instead


def _same_everywhere(outputs: Outputs) -> bool:
    return torch.equal(outputs, outputs[:1, :1].expand_as(outputs))
