import pytest
from dialog_head import MARKUP, NASTY, StandInClient, detail, node, shown, text_of
from textual.app import App
from textual.widgets import Button, LoadingIndicator, TabbedContent

from tui.client.plan import Check
from tui.client.state import Device, Hardware, LinkState, Node, Work
from tui.fleet.node_dialog import NodeDialog

_NAMES = {"a" * 40: MARKUP, "b" * 40: "pc-2"}


class _App(App[None]):
    def __init__(self, client: StandInClient, of: Node | None = None) -> None:
        super().__init__()
        self.client = client
        self.of = of or node()
        self.results: list[str | None] = []

    def on_mount(self) -> None:
        self.push_screen(NodeDialog(self.client, self.of, _NAMES), self.results.append)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (140, 45)])
async def test_what_is_known_shows_at_once_and_the_rest_when_it_comes(size: tuple[int, int]) -> None:
    client = StandInClient()
    client.may_answer.clear()
    app = _App(client)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert "Core Ultra 7, 16 cores" in shown(app)
        assert app.screen.query_one(LoadingIndicator).display
        assert client.asked_nodes == ["b" * 40]
        client.may_answer.set()
        await pilot.pause()
        await pilot.pause()
        assert not app.screen.query_one(LoadingIndicator).display
        assert "line 99" in text_of(app, "#log")
        for button in app.screen.query(Button):
            assert button.region.bottom <= size[1] and button.region.right <= size[0]


async def test_the_whole_profile() -> None:
    app = _App(StandInClient())
    async with app.run_test(size=(140, 45)) as pilot:
        await pilot.pause()
        await pilot.pause()
        profile = text_of(app, "#profile")
        for text in (
            "20 GB of 32 GB free, 16 GB allowed",
            "laptop, mains, 80 % charged",
            "192.168.1.12:5000, [fd00::12]:5000",
            "edge-agent 0.1.0, OpenVINO 2026.4, Python 3.12.1",
            "Linux 6.8",
            "Arc [140V]",
            "32.0.1",
            f"{MARKUP}  ",
            "0.40 ms",
            "118 MB/s",
            "2.5 ms",
            "b" * 40,
        ):
            assert text in profile


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
async def test_log_and_doctor(size: tuple[int, int]) -> None:
    app = _App(StandInClient())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.pause()
        tabs = app.screen.query_one(TabbedContent)
        tabs.active = "log-tab"
        await pilot.pause()
        assert "line 99" in shown(app)  # the newest is in view
        tabs.active = "doctor-tab"
        await pilot.pause()
        screen = shown(app)
        for text in ("✓ ok", "! warning", "✗ fault", "→ Close something.", "[bold red]"):
            assert text in screen


async def test_a_node_that_does_not_answer_says_so_and_refresh_asks_again() -> None:
    client = StandInClient()
    client.detail = detail(log=(), checks=(), milliseconds=None, problem="it did not answer in 20 s [bold]")
    app = _App(client)
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        await pilot.pause()
        assert "! it did not answer in 20 s [bold]" in shown(app)
        assert "not yet" in text_of(app, "#profile")
        client.detail = detail()
        await pilot.press("r")
        await pilot.pause()
        await pilot.pause()
        assert "did not answer" not in shown(app)
        assert len(client.asked_nodes) == 2


async def test_a_head_that_is_gone_keeps_what_was_shown() -> None:
    client = StandInClient()
    app = _App(client)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.pause()
        client.refusal = "nobody answers"
        await pilot.click("#refresh")
        await pilot.pause()
        await pilot.pause()
        assert "! nobody answers" in shown(app)
        assert "line 99" in text_of(app, "#log")
        assert not app.screen.query_one(LoadingIndicator).display


async def test_a_refresh_keeps_the_place_in_the_log() -> None:
    client = StandInClient()
    app = _App(client)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await pilot.pause()
        app.screen.query_one(TabbedContent).active = "log-tab"
        await pilot.pause()
        log = app.screen.query_one("#log-scroll")
        log.scroll_to(y=10, animate=False)
        await pilot.pause()
        await pilot.press("r")
        await pilot.pause()
        await pilot.pause()
        assert log.scroll_offset.y == 10


async def test_shutting_out_asks_first() -> None:
    client = StandInClient()
    app = _App(client)
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        await pilot.press("d")
        await pilot.pause()
        assert "Shut out pc-2?" in shown(app)
        await pilot.press("enter")  # the safe answer has the focus
        await pilot.pause()
        assert client.forgotten == [] and isinstance(app.screen, NodeDialog)
        await pilot.click("#shut-out")
        await pilot.pause()
        await pilot.press("y")
        await pilot.pause()
        await pilot.pause()
        assert client.forgotten == ["b" * 40]
        assert app.results == ["pc-2"]


async def test_a_head_that_refuses_to_shut_out_is_heard() -> None:
    client = StandInClient()
    app = _App(client)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        client.refusal = "there is no such node"
        await pilot.press("d")
        await pilot.pause()
        await pilot.press("y")
        await pilot.pause()
        await pilot.pause()
        assert "! there is no such node" in shown(app) and app.results == []
        await pilot.press("escape")
        await pilot.pause()
        assert app.results == [None]


async def test_the_head_is_not_shut_out() -> None:
    app = _App(StandInClient(), node(is_head=True))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert app.screen.query_one("#shut-out", Button).disabled
        await pilot.press("d")
        await pilot.pause()
        assert isinstance(app.screen, NodeDialog)


@pytest.mark.parametrize("name", NASTY)
async def test_foreign_text_stays_text(name: str) -> None:
    evil = node(name, work=Work(what=name, done=1, total=4)).model_copy(
        update={
            "hardware": Hardware(processor=name, devices=(Device(name=name, full_name=name, driver=name),)),
            "links": {"c" * 40: LinkState(latency_ms=float("inf"), bytes_per_second=-1)},
            "problem": None,
        }
    )
    client = StandInClient()
    check = Check(topic=name, status="fault", what=name, next_step=name)
    client.detail = detail(evil, log=(name,) * 3, checks=(check,), problem=name or None, milliseconds={"rows": (1,)})
    app = _App(client, evil)
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        await pilot.pause()
        for tab in ("profile-tab", "log-tab", "doctor-tab"):
            app.screen.query_one(TabbedContent).active = tab
            await pilot.pause()
            screen = shown(app)
            assert "\x1b" not in screen and "\u202e" not in screen
            if name.startswith("["):
                assert name[:8] in screen
