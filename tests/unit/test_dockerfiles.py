"""The images are built from what their Dockerfiles copy: the wheel must find there all that it is made of."""

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
    needed = {Path(path).parts[0] for path in [*wheel["packages"], *wheel["force-include"]]}
    # The build hook's own file has a fixed name (hatchling, hooks/custom).
    needed |= {"hatch_build.py", "pyproject.toml", project["project"]["readme"]}
    assert needed <= copied
