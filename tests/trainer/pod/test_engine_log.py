"""Which line of a server's log names the cause of its end."""

from rljob_trainer.pod.server_process import engine_error, server_error
from rljob_trainer.wire.weights.protocol import APPLYING_FAILED


def said(process: str, text: str, prefix: str = "ERROR 11-22 06:56:15 [core.py:1330] ") -> str:
    """As vLLM's processes write."""
    return "\n".join(f"({process}) {prefix}{line}" for line in text.splitlines()) + "\n"


def traceback(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "core.py", line 1299, in run\n    work()\n    ^^^^^^\n{error}\n'


ENGINE, WORKER_0, WORKER_1, SERVER = "EngineCore pid=112", "Worker_TP0 pid=120", "Worker_TP1 pid=121", "APIServer pid=1"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory."
FURTHER_UP = said(SERVER, traceback("RuntimeError: Engine core initialization failed. See root cause above."), "")


def engine_failed(error: str) -> str:
    """It says so twice: in its log, and as a process that ends by an exception."""
    first = said(ENGINE, "EngineCore failed to start.\n" + traceback(error))
    return first + said(ENGINE, "Process EngineCore:\n" + traceback(error), "")


def test_it_is_the_engine_s_and_not_the_server_s_that_says_to_look_further_up() -> None:
    log = engine_failed("subprocess.CalledProcessError: Command '['gcc']' returned 1.") + FURTHER_UP
    error = server_error(log)
    assert error and (error.exception, error.message) == ("CalledProcessError", "Command '['gcc']' returned 1.")
    assert log.splitlines()[error.line].endswith("returned 1.") and error == engine_error(log)


def test_it_is_the_worker_s_when_the_engine_failed_because_of_one() -> None:
    log = said(WORKER_1, "WorkerProc failed to start.\n" + traceback(OUT_OF_MEMORY)) + engine_failed("Exception: see")
    error = engine_error(log)
    assert error and error.exception == "OutOfMemoryError"


def test_it_is_not_a_worker_s_that_only_lost_its_peer() -> None:
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    log = said(WORKER_0, "WorkerProc hit an exception.\n" + traceback(lost))
    log += said(WORKER_1, "WorkerProc hit an exception.\n" + traceback(OUT_OF_MEMORY)) + engine_failed("Exception: see")
    error = engine_error(log)
    assert error and error.exception == "OutOfMemoryError"


def test_what_was_raised_counts_and_not_what_it_was_raised_from_or_what_follows() -> None:
    chain = traceback("KeyError: 'flash'") + "\nDuring handling of the above exception, another exception occurred:\n\n"
    log = said(ENGINE, "EngineCore encountered a fatal error.\n" + chain + traceback("ValueError: no such backend"))
    log += said(ENGINE, "Exception ignored in: <function f>\n" + traceback("AttributeError: 'NoneType'"))
    error = engine_error(log)
    assert error and (error.exception, error.message) == ("ValueError", "no such backend")


def test_lines_of_several_processes_may_alternate() -> None:
    engine, worker = (
        said(name, text).splitlines()
        for name, text in (
            (ENGINE, "EngineCore failed to start.\n" + traceback("Exception: see above")),
            (WORKER_0, "WorkerProc failed to start.\n" + traceback(OUT_OF_MEMORY)),
        )
    )
    error = engine_error("\n".join(line for pair in zip(engine, worker, strict=True) for line in pair))
    assert error and error.exception == "OutOfMemoryError"


def test_a_server_that_ends_itself_after_a_failed_update_names_the_worker_s_error() -> None:
    """As an H200's wrote them on 2026-11-22."""
    cause = "RuntimeError: CUDA Error: out of memory at cumem_allocator.cpp:163"
    called = "Exception: Call to wake_up method failed: Worker failed with error 'CUDA Error: out of memory'"
    failed = said(WORKER_0, "WorkerProc hit an exception.\n" + traceback(cause))
    failed += said(ENGINE, "Invocation of wake_up method failed\n" + traceback(called))
    assert engine_error(failed) is None, "the server may have handled it"
    error = engine_error(failed + said(SERVER, f"{APPLYING_FAILED}\n" + traceback(called), ""))
    assert error and error.message == "CUDA Error: out of memory at cumem_allocator.cpp:163"


def test_a_killed_engine_says_nothing_and_an_error_that_it_handled_is_not_its_end() -> None:
    handled = said(ENGINE, "Failed to import module:\n" + traceback("ImportError: no module named numba"))
    dead = said(SERVER, traceback("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."))
    assert engine_error(handled + dead) is None
    assert server_error(handled + dead) is None


def test_a_server_that_fails_by_itself_is_the_cause() -> None:
    log = "INFO starting\n" + traceback("ValueError: max-model-len (8192) is greater than 2048\nUse a smaller one")
    error = server_error(log)
    assert error and error.message == "max-model-len (8192) is greater than 2048"


def test_what_is_indented_behind_an_error_is_the_rest_of_its_message() -> None:
    """As vLLM's command wrote it on 2026-11-30: the first line of pydantic's errors says no rule."""
    counted = "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig"
    rule = "Assertion failed, Chunked prefill is required for mamba cache mode 'align'. [type=assertion_error]"
    for process in (SERVER, ""):
        said_so = traceback(f"{counted}\n  {rule}\n    For further information visit its page")
        log = said(process, said_so, "") if process else said_so
        error = server_error(log + "  indented, but behind another line\n".join(["INFO stopping\n", ""]))
        assert (
            error
            and error.message == f"1 validation error for VllmConfig; {rule}; For further information visit its page"
        )


def test_a_message_of_many_lines_is_cut() -> None:
    error = server_error(traceback("ValueError: no layer\n" + "\n".join(f"  {n}" for n in range(100))))
    assert error and error.message == "no layer; 0; 1; 2; 3"
