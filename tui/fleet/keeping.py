"""What a fleet's keeper has done to it: asked about first where it can't be undone, done by the head, and told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from textual.notifications import SeverityLevel
from textual.widget import Widget

from shards.errors import EdgeAgentError
from tui.client.head_client import HeadClient
from tui.client.plain import clean, one_line
from tui.client.state import Node, PendingNode, Request
from tui.dialogs.choice import ConfirmDialog

_LONGEST_NAME = 48


class Keeping:
    """Questions, and what became of the answers. Its coroutines are for workers: they wait for a person.

    Args:
        widget: On whose screen.
    """

    def __init__(self, widget: Widget) -> None:
        self._widget, self._is_asking = widget, False

    async def cancel(self, client: HeadClient, request: Request) -> None:
        """End an answer; it may be somebody else's."""
        text = f"{request.completion_tokens} tokens of it are there. Whoever asked is told that it was cancelled."
        question = f"End the answer to {short(request.client) or 'request ' + short(request.id)}?"
        if await self._is_wanted(ConfirmDialog(question, text, yes="End it")):
            await self._have_done(client.cancel(request.id), lambda _: "the answer is ended")

    async def approve(self, client: HeadClient, pending: PendingNode) -> None:
        """Let a node in, after a look at its code."""
        text = f"Its code is {one_line(pending.code, 64)}. Let it in only if that PC shows the same code."
        if pending.is_forgotten:
            text += " It was shut out before."
        question = f"Let {short(pending.name or 'the node')} in?"
        if await self._is_wanted(ConfirmDialog(question, text, yes="Let it in")):
            await self._have_done(client.approve(pending.code), lambda name: f"{short(name)} is in")

    async def refuse(self, client: HeadClient, code: str) -> None:
        """Do not list a node any more; it can still be let in by its code."""
        await self._have_done(client.refuse(code), lambda name: f"{short(name)} is not listed any more")

    async def forget(self, client: HeadClient, node: Node) -> None:
        """Shut a node out."""
        if await self._is_wanted(shut_out_question(node)):
            await self._have_done(client.forget(node.key), lambda name: f"{short(name)} is shut out")

    def tell(self, text: str, severity: SeverityLevel = "information") -> None:
        """Say something; it may be foreign text."""
        self._widget.notify(clean(text), severity=severity, markup=False)

    async def _is_wanted(self, question: ConfirmDialog) -> bool:
        """One question at a time: keys are quicker than dialogs."""
        if self._is_asking:
            return False
        self._is_asking = True
        try:
            answer: bool | None = await self._widget.app.push_screen_wait(question)
        finally:
            self._is_asking = False
        return answer is True

    async def _have_done(self, work: Awaitable[str | None], said: Callable[[str], str]) -> None:
        try:
            answer = await work
        except EdgeAgentError as error:
            self.tell(str(error), severity="error")
        else:
            self.tell(said(answer or ""))


def shut_out_question(node: Node) -> ConfirmDialog:
    """Asks whether a node is to be shut out."""
    text = "It serves no longer and must ask to be let in again. What it carries is planned anew."
    return ConfirmDialog(f"Shut out {short(node.name)}?", text, yes="Shut out", dangerous=True)


def short(name: str) -> str:
    """A name for a sentence."""
    return one_line(name, _LONGEST_NAME)
