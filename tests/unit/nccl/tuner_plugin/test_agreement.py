"""When a communicator uses its table: at once, or once the ranks of the job have agreed."""

import ctypes
import subprocess

import pytest

from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import InputError
from ncclt.nccl.tuner_plugin.build import compiler
from ncclt.nccl.tuner_plugin.compact_table import encode_table
from ncclt.nccl.tuner_table import FUNCTIONS, table_text

ALL_REDUCE = FUNCTIONS.index("allreduce")
UNDECIDED, USE, KEEP, IN_DOUBT = range(4)
TABLE = encode_table(
    table_text(["allreduce,0,100,tree,ll,2,2,16"], table_id="r", version=NcclVersion(2, 28, 9), nodes=2, ranks=16)
)
WAITING = {"NCCLT_TABLE": TABLE, "NCCLT_AGREEMENT": "hook"}


@pytest.fixture
def decide(library):
    decide = ctypes.CDLL(str(library)).ncclt_decide
    yield decide
    decide(UNDECIDED)


def uses_table(comm):
    return comm.ask(ALL_REDUCE, 64).costs[0] < 1


@pytest.mark.parametrize(("decision", "used"), [(UNDECIDED, False), (USE, True), (KEEP, False)])
@pytest.mark.parametrize("when", ["before", "after"])
def test_table_is_used_once_the_ranks_agreed(plugin, decide, decision, used, when):
    """PyTorch opens communicators inside init_process_group if it is given a device: before the ranks agree."""
    if when == "before":
        decide(decision)
    with plugin.communicator(ranks=16, nodes=2, environ=WAITING) as comm:
        decide(decision)
        assert uses_table(comm) is used


def test_communicator_never_changes_its_choice(plugin, decide):
    with plugin.communicator(ranks=16, nodes=2, environ=WAITING) as early:
        assert not uses_table(early)
        decide(USE)
        with plugin.communicator(ranks=16, nodes=2, environ=WAITING) as late:
            assert uses_table(late)
            decide(KEEP)
            assert uses_table(late)
        assert not uses_table(early)
    assert "used once all ranks have agreed" in early.log[0]


def test_decision_counts_without_the_variable_too(plugin, decide):
    """A rank that lost NCCLT_AGREEMENT on its way keeps the default with the others."""
    decide(KEEP)
    with plugin.communicator(ranks=16, nodes=2, environ={**WAITING, "NCCLT_AGREEMENT": None}) as comm:
        assert not uses_table(comm)


@pytest.mark.parametrize("api", [2, 3, 4, 5, 6, 7])
def test_questions_fail_while_the_decision_is_in_doubt(plugin, decide, api):
    decide(IN_DOUBT)
    with plugin.communicator(api=api, ranks=16, nodes=2, environ=WAITING) as comm:
        for _ in range(2):
            with pytest.raises(InputError, match=r"error 5: .*before this rank knew the decision"):
                comm.ask(ALL_REDUCE, 64)
    assert len(comm.log) == 2, "said once, not at every call"


def test_waiting_rank_with_a_bad_table_lives_and_fails_only_if_the_others_use_it(plugin, decide):
    bad = {**WAITING, "NCCLT_TABLE": TABLE[:-1]}
    with plugin.communicator(ranks=16, nodes=2, environ=bad) as comm:
        assert not uses_table(comm)
    decide(KEEP)
    with plugin.communicator(ranks=16, nodes=2, environ=bad) as comm:
        assert not uses_table(comm)
    decide(UNDECIDED)
    with plugin.communicator(ranks=16, nodes=2, environ=bad) as comm:
        decide(USE)
        with pytest.raises(InputError, match="it is damaged"):
            comm.ask(ALL_REDUCE, 64)
    with pytest.raises(InputError, match="cannot use the table of NCCLT_TABLE: it is damaged"):
        plugin.communicator(ranks=16, nodes=2, environ=bad).__enter__()


def test_table_for_another_shape_is_no_failure(plugin):
    with plugin.communicator(ranks=4, nodes=1, environ={"NCCLT_TABLE": TABLE}) as comm:
        assert not uses_table(comm)
    assert "none of its 1 rows is for 4 ranks on 1 nodes" in comm.log[0]


def test_plugin_describes_what_it_has_loaded(plugin, library, tmp_path):
    told = plugin.describe({"NCCLT_TABLE": TABLE})
    assert told["table"] == TABLE.rpartition(":")[2]
    assert told["problem"] == ""
    nothing = plugin.describe({"NCCLT_TABLE": None, "NCCLT_POLICY": None, "NCCL_TUNER_CONFIG_FILE": None})
    assert (nothing["table"], nothing["problem"]) == ("", "no table is named")
    odd = plugin.describe({"NCCLT_TABLE": None, "NCCLT_POLICY": str(tmp_path / "a\nproblem=")})
    assert odd["problem"] == "it cannot be opened: No such file or directory"
    assert told["image"] == nothing["image"] == odd["image"] != f"{0:016x}"


NCCL = "int ncclGetVersion(int *version) {{ *version = {}; return 0; }}\n"
TRY = """
import ctypes, os, sys
from pathlib import Path
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
nccl = [ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW) for path in sys.argv[2:]]
with LoadedPlugin(Path(sys.argv[1])).communicator(ranks=16, nodes=2) as comm:
    print("used" if comm.ask(4, 64).costs[0] < 1 else "default")
"""


def compiled(path, source, *flags):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".c").write_text(source)
    command = [compiler(), "-shared", "-fPIC", *flags, "-o", path, path.with_suffix(".c")]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.mark.parametrize(("version", "used"), [(22809, True), (22907, False)])
def test_version_is_compared_where_nccl_is_loaded_locally(run_code, tmp_path, version, used):
    """As PyTorch loads it: no symbol of it is visible to the plugin."""
    nccl = compiled(tmp_path / "libnccl.so.2", NCCL.format(version), "-Wl,-soname,libnccl.so.2")
    done = run_code(TRY, nccl, NCCLT_TABLE=TABLE)
    assert (done.returncode == 0) is used, done.stderr
    assert used or "it was measured with NCCL 2.28.9, this is 2.29.7" in done.stderr


TRY_ESTIMATES = """
import ctypes, os, sys
from pathlib import Path
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
nccl = ctypes.CDLL(sys.argv[2], mode=os.RTLD_LOCAL | os.RTLD_NOW)
with LoadedPlugin(Path(sys.argv[1])).communicator(ranks=16, nodes=2) as comm:
    for size in (64, 640):
        print(*(min(comm.ask(4, size, pipe_ops=count).costs) < 1 for count in (0, 1)))
"""


@pytest.mark.parametrize(("version", "ll"), [((2, 30, 7), "True True"), ((2, 31, 0), "False True")])
def test_a_row_of_ll_leaves_the_estimates_of_symmetric_kernels_to_nccl(run_code, tmp_path, version, ll):
    """Since 2.31: its answer lets NCCL run a symmetric kernel, and the question about the call never comes."""
    number = 10000 * version[0] + 100 * version[1] + version[2]
    nccl = compiled(tmp_path / "libnccl.so.2", NCCL.format(number), "-Wl,-soname,libnccl.so.2")
    rows = ["allreduce,0,100,tree,ll,2,2,16", "allreduce,101,1000,tree,simple,2,2,16"]
    table = encode_table(table_text(rows, table_id="r", version=NcclVersion(*version), nodes=2, ranks=16))
    done = run_code(TRY_ESTIMATES, nccl, NCCLT_TABLE=table)
    assert done.stdout.splitlines() == [ll, "True True"], done.stderr


OPENS = """
#include <stddef.h>
#include <stdint.h>
struct tuner { const char *name; int (*init)(void **, uint64_t, size_t, size_t, void *, void *, void *); };
int ncclGetVersion(int *version) { *version = VERSION; return 0; }
int open_tuner(struct tuner *tuner, void **context) {
  int code = tuner->init(context, 1, 16, 2, NULL, NULL, NULL);
  return code + 0 * (int)(size_t)context;
}
"""
TRY_CALLER = """
import ctypes, os, sys
nccl = [ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW) for path in sys.argv[2:]]
plugin = ctypes.CDLL(sys.argv[1])
tuner = ctypes.addressof(ctypes.c_void_p.in_dll(plugin, "ncclTunerPlugin_v5"))
context = ctypes.c_void_p()
print([one.open_tuner(ctypes.c_void_p(tuner), ctypes.byref(context)) for one in nccl])
"""


def test_of_two_nccls_the_one_that_opens_the_plugin_counts(run_code, tmp_path):
    nccls = [
        compiled(tmp_path / str(version) / "libnccl.so.2", OPENS, f"-DVERSION={version}", "-Wl,-soname,libnccl.so.2")
        for version in (22907, 22809)
    ]
    done = run_code(TRY_CALLER, *nccls, NCCLT_TABLE=TABLE)
    assert done.stdout == "[5, 0]\n", done.stderr


NO_MEMORY = """
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdint.h>
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
static size_t limit = SIZE_MAX;
void *malloc(size_t size) { return size >= limit ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return count * size >= limit ? NULL : __libc_calloc(count, size); }
static char said[2000];
static void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  va_list values;
  (void)flags, (void)file, (void)line;
  va_start(values, format);
  int length = snprintf(said, sizeof said, "%d ", level);
  vsnprintf(said + length, sizeof said - (size_t)length, format, values);
  va_end(values);
}
struct tuner { const char *name; int (*init)(void **, uint64_t, size_t, size_t, void *, void *, void *); };
const char *open_without_memory(struct tuner *tuner, int from) {
  void *context = NULL;
  limit = (size_t)from;
  int code = tuner->init(&context, 1, 16, 2, (void *)logger, NULL, NULL);
  limit = SIZE_MAX;
  return code == 5 && !context ? said : "it went on";
}
"""
TRY_MEMORY = """
import ctypes, sys
opens = ctypes.CDLL(None).open_without_memory
opens.restype = ctypes.c_char_p
tuner = ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.CDLL(sys.argv[1]), "ncclTunerPlugin_v5"))
print(opens(ctypes.c_void_p(tuner), int(sys.argv[2])).decode())
"""


@pytest.mark.parametrize("fails_from", [400, 50_000], ids=["communicator", "rows"])
def test_rank_without_memory_fails_init(run_code, tmp_path, fails_from):
    preload = compiled(tmp_path / "memory.so", NO_MEMORY)
    done = run_code(TRY_MEMORY, fails_from, NCCLT_TABLE=TABLE, LD_PRELOAD=str(preload))
    assert "2 TUNER/ncclt: this rank cannot use the table of NCCLT_TABLE: no memory is left" in done.stdout, done.stderr


SLOW = """
#include <stddef.h>
#include <unistd.h>
static int begin(size_t ranks, size_t nodes, void *log, void **context) {
  (void)ranks, (void)nodes, (void)log;
  *context = NULL;
  usleep(300000);
  return 0;
}
static int decide(void *c, int f, size_t b, int p, float **costs, int a, int r, int g, int *channels) {
  (void)c, (void)f, (void)b, (void)p, (void)a, (void)r, (void)g, (void)channels;
  ((float *)costs)[5] = 0.5f;
  return 0;
}
static int end(void *context) { return context != NULL; }
struct { const char *name; void *init, *decide, *end; } ncclTunerPlugin_v4 = {"slow", begin, decide, end};
"""
TRY_MANY = """
import sys, threading
from pathlib import Path
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
plugin, lost = LoadedPlugin(Path(sys.argv[1])), []
def open_one():
    with plugin.communicator(ranks=16, nodes=2) as comm:
        if comm.ask(4, 64).costs[5] != 0.5:
            lost.append(comm.log)
threads = [threading.Thread(target=open_one) for _ in range(100)]
for one in threads: one.start()
for one in threads: one.join()
print(len(lost))
"""


def test_hundred_communicators_that_open_at_once_all_keep_the_vendors_tuner(run_code, tmp_path):
    """The 65th lost it without a word."""
    vendor = compiled(tmp_path / "vendor.so", SLOW)
    code = TRY_MANY.replace("from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin", UNLOCKED)
    done = run_code(code, NCCLT_DELEGATE=str(vendor))
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


# Threads of one process open at once only if they do not wait for each other's environment.
UNLOCKED = """
import contextlib
from ncclt.nccl.tuner_plugin import loaded
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
loaded._variables = lambda wanted: contextlib.nullcontext()
"""
