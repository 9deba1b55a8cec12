"""How heads are numbered and named: by hand."""

import pytest
import zoo

import topic_probe as tp
from topic_probe.lens import capture
from topic_probe.measure.heads import Heads, layer_and_head, layer_starts, layers_of


@pytest.fixture(scope="module")
def heads():
    return Heads.of(capture.view(tp.open_model(zoo.make("bert"))))


@pytest.mark.parametrize("name", ["2.1", "L2H1", " l2 h1 ", "02.1"])
def test_one_head_has_the_names_of_tables_and_of_pages(name, heads):
    number = 2 * zoo.HEADS + 1
    assert layer_and_head(name) == (2, 1)
    assert heads.named(name) == heads.named([name]) == heads.named([(2, 1)]) == (number,)
    assert heads.name(number) == "2.1"
    assert heads.index([number]) == {"stack": ("self",), "layer": (2,), "head": (1,)}
    assert number in heads.layer(2)


def test_several_heads_come_in_their_order_and_once(heads):
    assert heads.named("L2H1, 0.3,2.1") == (3, 2 * zoo.HEADS + 1)


@pytest.mark.parametrize("name", ["", "21", "2-1", "H1L2", "2.1.0", "L2", "-2.1"])
def test_what_names_no_head_is_none(name, heads):
    assert layer_and_head(name) is None
    if name:
        with pytest.raises(ValueError, match="there is no head"):
            heads.named(name)


def test_heads_of_several_stacks_are_named_with_their_stack():
    both = Heads.of(capture.view(tp.open_model(zoo.make("bart"))))
    (number,) = both.named("decoder.1.2")
    assert both.name(number) == "decoder.1.2"
    assert both.index([number])["stack"] == ("decoder",)
    with pytest.raises(ValueError, match=r"there is no head '1\.2'"):
        both.named("L1H2")


def test_layers_begin_where_the_stack_or_the_layer_is_another():
    index = {"stack": ("encoder",) * 2 + ("decoder",) * 4, "layer": (0, 0, 0, 0, 1, 1)}
    assert layer_starts(index) == [0, 2, 4]
    assert layers_of(index).tolist() == [0, 0, 1, 1, 2, 2]
