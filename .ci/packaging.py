"""Check that encoderkit works as people get it: from a wheel, an sdist and an editable install.

One clean environment outside the checkout; every command runs from a foreign directory, with no
path to the checkout but the one that pip made.

    python .ci/packaging.py
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STRANGERS = sorted((ROOT / "plugins").glob("encoderkit-*/"))
CLEAN = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

FREE_OF_TORCH = "import sys, encoderkit; sys.exit('torch' in sys.modules)"
WHERE = "import encoderkit; print(encoderkit.__file__)"
START_LIMIT = 0.5  # seconds that help or TAB may take; importing torch alone takes more than 1


class Site:
    """A clean environment, and a foreign directory to run its commands in."""

    def __init__(self, place: Path) -> None:
        self.bin = place / "venv" / "bin"
        self.foreign = place / "elsewhere"
        self.foreign.mkdir()
        venv.create(place / "venv", with_pip=True)

    def run(self, *command: str | Path, **variables: str) -> str:
        """Run a command of the environment; end everything when it fails."""
        words = [str(word) for word in command]
        print("   $", *words, flush=True)
        done = subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.foreign,
            env=CLEAN | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{done.stdout}\n{done.stderr}\nexit status {done.returncode}")
        return done.stdout

    def pip(self, *words: str | Path) -> None:
        """Run pip in the environment."""
        self.run("python", "-m", "pip", "--disable-pip-version-check", *words)


def expect(found: bool, what: str) -> None:
    """End everything unless `found`."""
    if not found:
        sys.exit(f"packaging: {what}")


def build(source: Path, out: Path) -> list[Path]:
    """Build an sdist, and a wheel from it; return both, the wheel first."""
    out.mkdir()
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(source)]
    done = subprocess.run(command, env=CLEAN, capture_output=True, text=True)
    expect(done.returncode == 0, f"{source.name} cannot be built\n{done.stdout}{done.stderr}")
    return sorted(out.iterdir(), key=lambda path: path.suffix != ".whl")


def build_strangers(out: Path) -> list[Path]:
    """Build the wheels of the packages under plugins/, by one call of pip."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps"]
    words = [*command, "--wheel-dir", str(out), *map(str, STRANGERS)]
    done = subprocess.run(words, env=CLEAN, capture_output=True, text=True)
    expect(done.returncode == 0, f"plugins cannot be built\n{done.stdout}{done.stderr}")
    wheels = sorted(out.iterdir())
    expect(len(wheels) == len(STRANGERS), f"of {len(STRANGERS)} plugins there are {wheels}")
    return wheels


def check_contents(wheel: Path, sdist: Path) -> None:
    """The wheel holds the code, the built-ins and the presets; the sdist also what tests them."""
    inside = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in inside if ".dist-info" not in name}
    expect(tops == {"encoderkit", "encoderkit_builtin"}, f"the wheel holds {sorted(tops)}")
    presets = {str(path.relative_to(ROOT)) for path in (ROOT / "conf").rglob("*.yaml")}
    templates = (ROOT / "encoderkit" / "cli" / "templates").rglob("*.in")
    wanted = ["encoderkit/py.typed", *(f"encoderkit/{preset}" for preset in presets)]
    for name in [*wanted, *(str(path.relative_to(ROOT)) for path in templates)]:
        expect(name in inside, f"the wheel lacks {name}")
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    for name in ["conf/config.yaml", "tests/test_architecture.py", "constraints.txt", "Makefile"]:
        expect(name in files, f"the sdist lacks {name}")


def check_train(site: Site, *overrides: str) -> None:
    """A run of its own is trained to its end, and leaves its record."""
    shutil.rmtree(site.foreign / "runs", ignore_errors=True)
    site.run("encoderkit", "train", "train=smoke", *overrides)
    states = [json.loads(r.read_text())["state"] for r in site.foreign.rglob("record.json")]
    expect(states == ["ok"], f"the records below {site.foreign} say {states}")


def check_commands(site: Site) -> None:
    """What a newcomer types first works, and importing the package does not import torch."""
    site.run("python", "-c", FREE_OF_TORCH)
    usage = site.run("python", "-m", "encoderkit", "--help")
    expect("encoderkit train" in usage, f"--help says {usage}")
    expect("rmsnorm" in site.run("encoderkit", "show", "norm=rmsnorm"), "show lacks the norm")
    check_train(site, "task=sort")


def check_start(site: Site) -> None:
    """Help and TAB come fast, in processor time: it does not depend on what else is running."""
    for words in (["--help"], ["train", "--help"], []):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = site.run("encoderkit", *words) if words else tab(site, "norm=rms")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        print(f"   took {taken:.2f} s", flush=True)
        expect(taken < START_LIMIT, f"{words or 'TAB'} took {taken:.2f} s, more than {START_LIMIT}")
    expect(said.split() == ["norm=rmsnorm"], f"TAB said {said}")


def tab(site: Site, word: str) -> str:
    """Return what TAB offers after `word`."""
    line = f"encoderkit train {word}"
    held = {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    return site.run("encoderkit", "--shell-completion", "query=bash", **held)


def choices(site: Site) -> dict[str, list[str]]:
    """Return the choices that strangers' packages offer, such as norm=mynorm, by package."""
    found: dict[str, list[str]] = {}
    for row in json.loads(site.run("encoderkit", "parts", "--json")):
        package = row["owner"].split()[0]
        if package != "encoderkit":
            found.setdefault(package, []).append(f"{row['kind']}={row['choice']}")
    return found


def check_strangers(site: Site, wheels: list[Path]) -> None:
    """Strangers' wheels add their parts everywhere, and each takes only its own away again."""
    expect(choices(site) == {}, "there are strangers' parts before their plugins")
    site.pip("install", "--no-deps", *wheels)
    found = choices(site)
    expect(sorted(found) == [home.name for home in STRANGERS], f"there are parts of {list(found)}")
    usage = site.run("encoderkit", "train", "--help")
    for name in [name for names in found.values() for name in names]:
        kind, _, choice = name.partition("=")
        (line,) = [line for line in usage.splitlines() if line.strip().startswith(f"{kind}=")]
        expect(f" {choice} [" in line, f"--help says {line}")
        expect(name in tab(site, name[:-1]).split(), f"TAB does not know {name}")
        check_train(site, name)
    for package in list(found):
        site.pip("uninstall", "-y", package)
        del found[package]
        expect(choices(site) == found, f"without {package} there are not {found}")


def check_new(site: Site) -> None:
    """A package that `parts new` wrote installs, and its part has every property, as it is."""
    site.run("encoderkit", "parts", "new", "norm", "mynorm")
    site.pip("install", "--no-deps", "-e", site.foreign / "encoderkit-mynorm")
    print(site.run("encoderkit", "parts", "check", "norm=mynorm").splitlines()[-1], flush=True)
    site.pip("uninstall", "-y", "encoderkit-mynorm")


def check_install(site: Site, what: Iterable[str | Path], home: Path) -> None:
    """Install in place of the former one, and see that the commands run what was installed."""
    site.pip("uninstall", "-y", "encoderkit")
    site.pip("install", *what)
    found = Path(site.run("python", "-c", WHERE).strip())
    expect(found.is_relative_to(home), f"{found} runs, which is not below {home}")
    check_commands(site)


def main() -> None:
    """Run all checks."""
    with tempfile.TemporaryDirectory(prefix="encoderkit-packaging-") as name:
        place = Path(name).resolve()
        print("-- build", flush=True)
        wheel, sdist = build(ROOT, place / "dist")
        strangers = build_strangers(place / "dist-plugins")
        check_contents(wheel, sdist)
        site = Site(place)
        print("-- wheel, with all that it asks for", flush=True)
        check_install(site, ["-c", ROOT / "constraints.txt", wheel], place / "venv")
        site.pip("check")
        check_start(site)
        print("-- strangers' wheels beside it", flush=True)
        check_strangers(site, strangers)
        print("-- a package that parts new wrote", flush=True)
        check_new(site)
        print("-- sdist", flush=True)
        check_install(site, ["--no-deps", sdist], place / "venv")
        print("-- editable", flush=True)
        check_install(site, ["--no-deps", "-e", ROOT], ROOT)
    print("packaging: wheel, sdist, editable install and strangers' plugins work", flush=True)


if __name__ == "__main__":
    main()
