"""Our event store where the SDK takes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack

from tailrope._options import MEMORY, Options, check_prefer_resumable, check_transport
from tailrope._runtime import Runtime
from tailrope.mcp import _engage, _patch, _status
from tailrope.mcp._hooks import Hooks

if TYPE_CHECKING:
    from tailrope._native import Store


class EventStore(Hooks):
    """A bounded event store. Passed to a server as `event_store=`, it makes that server resumable.

    Making one puts Tailrope's transport in place for the servers that get it, without `install()`. The
    options are those of `install()`; each store has an engine, and so options, of its own. Where the SDK's own
    transport serves (`transport="stock"`, TAILROPE_DISABLE), it keeps that transport's events, within what that
    transport can do.

    Args:
        store: an address, see `tailrope.open_store`, or a store that is open.
        transport: `tailrope`, or `stock` to leave the SDK's transport in place.
        prefer_resumable: as `install()` has it, for the servers that get this store. On the SDK's own transport it has
            no effect.
        options: see `tailrope.install`.

    Raises:
        ValueError: an unknown or wrong option.
        TailropeError: the store cannot be opened (code `store_not_opened`).
    """

    def __init__(
        self,
        store: str | Store = MEMORY,
        *,
        transport: Literal["tailrope", "stock"] = "tailrope",
        prefer_resumable: bool = True,
        **options: Unpack[Options],
    ) -> None:
        check_transport(transport)
        check_prefer_resumable(prefer_resumable)
        self.prefer_resumable = prefer_resumable
        super().__init__(Runtime(dict(options), store=store), "", stock=transport == "stock")
        if not self.stock:
            _patch.patch()
            _engage.stores.add(self)
            _status.log_store(self)

    def scoped(self, session_id: str) -> Hooks:
        """The part of the store that belongs to one session, for a transport of the SDK's that you make yourself:
        event ids of one session mean nothing in another one.

        `drop()` of what is returned forgets its events. Tailrope's transport tells sessions apart by itself.
        """
        if not session_id:
            msg = "a session id is a str that is not empty"
            raise ValueError(msg)
        return Hooks(self.runtime, session_id, stock=self.stock)
