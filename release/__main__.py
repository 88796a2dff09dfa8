"""Builds, checks and tries what is published. `make dist` and the release workflow call it.

Its tools are in requirements/release.txt.

native [PLATFORM ...]    wheels and npm packages with a native half, for this platform if none is named
source                   the sdist, the main npm package and the crates
check [PLATFORM ...]     whether dist/ has all of that for these platforms (`all`: for every one), all of it in order
publish [REGISTRY ...]   hands it to pypi, npm, crates and github
try [LANGUAGE ...]       installs it in empty folders, and makes a call, a close, a resume and a task
"""

import argparse
import sys

from places import PLATFORMS, run, this_platform


def main() -> None:
    parser = argparse.ArgumentParser(prog="release", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["native", "source", "check", "try", "publish"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--profile", default="dist", help="of cargo, for native")
    parser.add_argument("--interpreter", help="one without a global lock, such as python3.14t: a wheel for it alone")
    parser.add_argument("--add-target", action="store_true", help="have rustup install what native needs")
    parser.add_argument("--dry-run", action="store_true", help="for publish: all but the upload")
    words = parser.parse_intermixed_args()
    if words.what == "try":
        import trying

        trying.languages(words.names or list(trying.LANGUAGES))
        return
    if words.what == "publish":
        import publish

        publish.publish(words.names or list(publish.REGISTRIES), words.dry_run)
        return
    names = list(PLATFORMS) if words.names == ["all"] else words.names or [this_platform()]
    if unknown := set(names) - set(PLATFORMS):
        sys.exit(f"release: nothing is published for {', '.join(unknown)}; there is {', '.join(PLATFORMS)}")
    if words.what == "check":
        import check

        check.check(names, words.names == ["all"])
        return
    import build

    if words.add_target:
        run("rustup", "target", "add", *(PLATFORMS[name].target for name in names))
    if words.what == "native":
        build.native(names, words.profile, words.interpreter)
    else:
        build.source()


if __name__ == "__main__":
    main()
