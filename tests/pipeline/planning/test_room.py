from __future__ import annotations

from itertools import accumulate, pairwise

from brute_force import splits
from hypothesis import given
from hypothesis import strategies as st
from small_fleets import NOTHING, model, node

from pipeline.planning.room import Reserve, Room, kv_tokens


def room(memory: list[int], **sizes: int) -> Room:
    return Room(model(4, **sizes), [node(str(i), memory=m) for i, m in enumerate(memory)], NOTHING)


def test_the_reserve_is_kept_free() -> None:
    reserve = Reserve(0.05, 200_000_000)
    assert reserve.usable(4_000_000_000) == 3_600_000_000
    assert reserve.usable(0) < 0
    assert reserve.usable(reserve.needed(3_600_000_000)) >= 3_600_000_000
    assert reserve.needed(3_600_000_000) <= 4_000_000_001
    offer = [node("a", memory=1000)]
    assert Room(model(4), offer, Reserve(0.5, 100)).usable == (399,)


def test_users_take_whole_blocks() -> None:
    assert [kv_tokens(*asked) for asked in ((1, 1), (3, 256), (2, 257))] == [256, 768, 1024]


def test_each_stage_has_shared_weights_and_the_ends_their_own() -> None:
    # embedding 5, head 5, shared 1, layers of 10
    assert room([51]).most((0,), 0) == (4,)
    assert room([50]).most((0,), 0) == (0,)
    assert room([16, 21, 16]).most((0, 1, 2), 0) == (1, 2, 1)
    assert room([15, 20, 15]).most((0, 1, 2), 0) == (0, 1, 0)


def test_the_kv_cache_takes_room_in_every_layer() -> None:
    assert room([1000], kv_token=1).most((0,), 256) == (0,)
    assert room([1075], kv_token=1).most((0,), 256) == (4,)
    assert room([1074], kv_token=1).most((0,), 256) == (0,)


def test_edges_move_to_where_large_layers_fit() -> None:
    size = model((10, 30, 10, 10, 10, 30), embedding=0, head=0, shared=0)
    tight = Room(size, [node("a", memory=50), node("b", memory=50)], NOTHING)
    assert tight.most((0, 1), 0) == (3, 3)
    assert tight.settle((0, 1), (3, 3), 0) == (3, 3)
    assert tight.settle((0, 1), (2, 4), 0) == (3, 3)
    assert not Room(size, [node("a", memory=50), node("b", memory=49)], NOTHING).holds((0, 1), 0)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Room, list[int], tuple[int, ...], list[list[int]]]:
    layers = draw(st.lists(st.integers(0, 40), min_size=1, max_size=8))
    size = model(layers, embedding=draw(st.integers(0, 30)), head=draw(st.integers(0, 30)))
    count = draw(st.integers(1, min(4, len(layers))))
    least = max(layers) + size.shared
    memory = [least + draw(st.integers(0, sum(layers) // count + 10)) for _ in range(count)]
    fitting = []
    for split in splits(len(layers), count):
        edges = [0, *accumulate(split)]
        if all(size.stage(a, b, 0) <= m for (a, b), m in zip(pairwise(edges), memory, strict=True)):
            fitting.append(list(split))
    return (
        Room(size, [node(str(i), memory=m) for i, m in enumerate(memory)], NOTHING),
        layers,
        tuple(range(count)),
        fitting,
    )


@given(fleets(), st.data())
def test_what_fits_is_found(
    fleet: tuple[Room, list[int], tuple[int, ...], list[list[int]]], data: st.DataObject
) -> None:
    found, layers, nodes, fitting = fleet
    wanted = data.draw(st.sampled_from(list(splits(len(layers), len(nodes)))))
    settled = found.settle(nodes, wanted, 0)
    assert (settled is not None) == bool(fitting) == found.holds(nodes, 0)
    if settled is not None:
        assert list(settled) in fitting
        assert list(wanted) not in fitting or settled == wanted
    most = found.most(nodes, 0)
    assert all(count <= fits for split in fitting for count, fits in zip(split, most, strict=True))
