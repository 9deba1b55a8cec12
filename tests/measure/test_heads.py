"""How heads are numbered and named: by hand."""

import pytest
import zoo

from topic_probe.measure.heads import Heads, layer_and_head, layer_starts, layers_of


@pytest.mark.parametrize("name", ["2.1", "L2H1", " l2 h1 ", "02.1"])
def test_one_head_has_the_names_of_tables_and_of_pages(name):
    heads, number = Heads.of(zoo.opened("bert").view), 2 * zoo.HEADS + 1
    assert layer_and_head(name) == (2, 1)
    assert heads.named(name) == heads.named([name]) == heads.named([(2, 1)]) == (number,)
    assert heads.name(number) == "2.1"
    assert heads.index([number]) == {"stack": ("self",), "layer": (2,), "head": (1,)}
    assert number in heads.layer(2)
    assert heads.named(f"{name}, 0.3,2.1") == (3, number)  # in their order, and once
    assert heads.named("2") == heads.named([2]) == tuple(range(2 * zoo.HEADS, 3 * zoo.HEADS))


@pytest.mark.parametrize("name", ["21", "H1L2", "2.1.0", "-2.1"])
def test_what_names_no_head_is_none(name):
    assert layer_and_head(name) is None
    with pytest.raises(ValueError, match="there is no head"):
        Heads.of(zoo.opened("bert").view).named(name)


def test_heads_of_several_stacks_are_named_with_their_stack():
    both = Heads.of(zoo.opened("bart").view)
    (number,) = both.named("decoder.1.2")
    assert both.name(number) == "decoder.1.2"
    assert both.index([number])["stack"] == ("decoder",)
    assert len(both.named("decoder.1, cross.0")) == 2 * zoo.HEADS
    with pytest.raises(ValueError, match=r"there is no head '1\.2'"):
        both.named("L1H2")


def test_layers_begin_where_the_stack_or_the_layer_is_another():
    index = {"stack": ("encoder",) * 2 + ("decoder",) * 4, "layer": (0, 0, 0, 0, 1, 1)}
    assert layer_starts(index) == [0, 2, 4]
    assert layers_of(index).tolist() == [0, 0, 1, 1, 2, 2]
