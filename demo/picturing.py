"""Take pictures of the live page during the demo's part about a cluster: demo/picturing.py FOLDER

A browser looks at the page through the load balancer while the demo runs, as anybody may who opens its address.
"""

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from cluster.fleet import Fleet
from cluster.story import run_cluster
from kit.browser import Browser

WIDTH, HEIGHT, MOST_HEIGHT = 1_440, 900, 1_180


class Looking:
    """The browser, and the pictures that it takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._page: Browser | None = None

    async def look(self, name: str, fleet: Fleet) -> None:
        await asyncio.to_thread(self._look, name, fleet)

    def _look(self, name: str, fleet: Fleet) -> None:
        if self._page is None:
            self._page = Browser(f"http://127.0.0.1:{fleet.port}/live", WIDTH, HEIGHT).__enter__()
            return
        shown = {
            "tasks": "document.querySelector('#tasks tbody tr') !== null",
            "kill": "document.querySelector('#feed').innerText.includes('is silent')",
        }
        self._page.wait(shown[name])
        height = min(MOST_HEIGHT, int(self._page.run("document.querySelector('main').getBoundingClientRect().bottom")))
        self._page.picture(self._folder / f"page-{name}.png", x=0, y=0, width=WIDTH, height=height)

    def close(self) -> None:
        if self._page is not None:
            self._page.__exit__(None, None, None)


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    # A proxy of the environment must not get between the two.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    looking = Looking(Path(sys.argv[1]))
    try:
        return 0 if asyncio.run(run_cluster(looking.look)) else 1
    finally:
        looking.close()


if __name__ == "__main__":
    sys.exit(main())
