"""The images are built from what their Dockerfiles copy: the wheel must find there all that it is made of."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("image", ["tuner", "api"])
def test_everything_that_the_wheel_is_made_of_is_copied(image):
    copied = {
        word
        for line in (ROOT / image / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"]}
    # The build hook's own file has a fixed name (hatchling, hooks/custom).
    needed |= {"hatch_build.py", "pyproject.toml", project["project"]["readme"]}
    assert [path for path in needed if not {path, *map(str, Path(path).parents)} & copied] == []


@pytest.mark.parametrize(("image", "extra"), [("api", "api"), ("tuner", "tune")])
def test_the_image_installs_what_was_tested_by_hash(image, extra):
    """`make pins` writes the requirements from pyproject.toml and constraints.txt."""
    blocks = re.split(r"\n(?=\S)", (ROOT / image / "requirements.txt").read_text().strip())
    found = dict(block.split(" ")[0].split("==") for block in blocks)
    pinned = {
        name(line): line.split("==")[1] for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    }
    found = {name(key): version for key, version in found.items()}

    assert all("--hash=sha256:" in block for block in blocks)
    assert {key: version for key, version in found.items() if pinned.get(key, version) != version} == {}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {name(line) for line in (*extras[extra], *extras["store"])} - {"ncclt", "torch"}
    assert wanted <= found.keys()


def name(requirement):
    """Return the name of a requirement, as indexes compare it."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0].split("==")[0].lower())


@pytest.mark.parametrize("image", ["api", "tuner"])
def test_the_image_says_what_is_in_it(image):
    text = (ROOT / image / "Dockerfile").read_text()
    listed = text.index("cyclonedx-py environment --output-file /sbom.cdx.json /venv/bin/python")
    copied = text.index("COPY --from=build /sbom.cdx.json")
    assert text.index("--require-hashes") < listed < copied
