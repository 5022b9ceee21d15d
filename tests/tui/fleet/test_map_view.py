import pytest
from dialog_head import shown
from fleet_states import chain, fleet, history_of, key, mixed, node, simple
from textual.app import App, ComposeResult
from textual.geometry import Region

from tui.client.state import Fleet
from tui.fleet.map_view import MapView


class _App(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.opened: list[str] = []

    def compose(self) -> ComposeResult:
        yield MapView(clock=lambda: self.now)

    def on_map_view_node_opened(self, message: MapView.NodeOpened) -> None:
        self.opened.append(message.node.name)

    @property
    def map(self) -> MapView:
        return self.query_one(MapView)

    def show(self, state: Fleet) -> None:
        self.map.show_fleet(state, history_of(state, 2))

    @property
    def chosen(self) -> str | None:
        node = self.map.chosen
        return node.name if node else None


async def test_keys_move_over_the_nodes_and_open_one() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(simple(4))
        app.map.focus()
        await pilot.pause()
        names = [app.chosen]
        for pressed in ("right", "down", "left", "up", "left"):
            await pilot.press(pressed)
            names.append(app.chosen)
        assert names == ["pc-1", "pc-2", "pc-4", "pc-3", "pc-1", "pc-1"]
        await pilot.press("down", "enter")
        assert app.opened == ["pc-3"]


async def test_the_mouse_chooses_and_a_second_click_opens() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(simple(2))
        await pilot.pause()
        await pilot.click(MapView, offset=(60, 3))
        assert app.chosen == "pc-2" and not app.opened
        await pilot.click(MapView, offset=(60, 3), times=2)
        assert app.opened == ["pc-2"]


async def test_the_cursor_stays_with_its_node() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(simple(3))
        await pilot.press("right", "right")
        assert app.chosen == "pc-3"
        app.show(fleet(chains=(chain([3, 1]),), nodes=tuple(map(node, (1, 2, 3)))))
        assert app.chosen == "pc-3"
        app.show(simple(2))  # it has left
        assert app.chosen == "pc-1"


async def test_more_nodes_than_lines_scroll_and_are_counted() -> None:
    app = _App()
    async with app.run_test(size=(60, 8)) as pilot:
        app.map.styles.border = ("round", "white")
        app.show(simple(20))
        app.map.focus()
        await pilot.pause()
        assert "+15 more" in shown(app) and "pc-20" not in shown(app)
        await pilot.press(*["down"] * 19)
        await pilot.pause()
        assert app.chosen == "pc-20" and "pc-20" in shown(app) and "more" not in shown(app)


async def test_steps_move_while_there_are_some() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(simple(2, steps=2))
        await pilot.pause()
        assert app.map.is_animating
        before = shown(app)
        app.now += 0.4
        app.map.draw_frame()
        await pilot.pause()
        assert shown(app) != before
        app.show(simple(2, steps=0))
        assert not app.map.is_animating


async def test_steps_of_the_next_state_go_on_from_where_they_are() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(simple(2, steps=1))
        app.now += 0.4
        app.map.draw_frame()
        await pilot.pause()
        before = shown(app)
        app.show(simple(2, steps=1))
        await pilot.pause()
        assert shown(app) == before


async def test_only_the_lines_with_moving_steps_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(simple(2, steps=2))
        await pilot.pause()
        drawn: list[Region] = []
        monkeypatch.setattr(app.map, "refresh", lambda *regions: drawn.extend(regions))
        app.map.draw_frame()
        assert not drawn
        app.now += 0.4
        app.map.draw_frame()
        assert {region.y for region in drawn} <= {7, 8} and drawn  # the boxes' bottoms, and the way back


async def test_steps_of_a_head_that_is_gone_do_not_move() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        state = simple(2, steps=2)
        app.map.show_fleet(state, history_of(state, 2), is_live=False)
        await pilot.pause()
        assert not app.map.is_animating and "pc-2" in shown(app)


async def test_who_wants_no_animations_sees_the_steps_of_each_state() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        app.animation_level = "none"
        app.show(simple(2, steps=2))
        await pilot.pause()
        assert not app.map.is_animating and shown(app).count("●") == 4


async def test_what_cannot_be_seen_does_not_move() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(simple(2, steps=2))
        await pilot.pause()
        app.map.display = False
        await pilot.pause()
        assert not app.map.is_animating


async def test_all_sizes_and_themes() -> None:
    app = _App()
    async with app.run_test(size=(140, 45)) as pilot:
        app.show(mixed())
        for size in ((140, 45), (80, 24), (60, 20), (20, 5), (3, 1), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        app.theme = "textual-light"
        await pilot.pause()
        assert "fetching 42 %" in shown(app) and key(9)[:8] in shown(app)


async def test_a_node_that_is_killed_is_seen_to_be_gone() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(simple(2))
        await pilot.pause()
        app.show(fleet(chains=(chain([1, 2], failure="pc-2 is gone"),), nodes=(node(1),)))
        await pilot.pause()
        assert "has failed: pc-2 is gone" in shown(app) and "× " + key(2)[:8] in shown(app)
