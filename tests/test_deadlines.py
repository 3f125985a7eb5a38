"""Every call in the code that can wait for somebody else has a deadline, or stands in a list with the reason why not.

A Redis command is bounded by its socket, whose time limit `shared.redis_client` sets; what is looked for here is the
rest: events, queues, futures, processes, threads and pools of them, groups of tasks, pipes, locks and conditions, HTTP
clients, and Redis clients made elsewhere.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COLLECTIVE = {"broadcast", "all_gather", "all_reduce", "gather", "barrier", "scatter", "recv", "new_group"}
SEEN_THROUGH = {
    "wait",
    "join",
    "get",
    "acquire",
    "readline",
    "communicate",
    "drain",
}  # waits, where they are called bare

UNBOUNDED: dict[tuple[str, str], str] = {
    # what is waited for is the end of the process itself, or of the run that it is there for
    (
        "shared/service.py:_until_signalled",
        "asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)",
    ): "the service runs until it ends or is told to",
    ("shared/service.py:_until_signalled", "told_to_stop.wait()"): "a task that the wait above gives up",
    (
        "cli/run/session.py:Session._first_of",
        "asyncio.wait({done, failed, stopped, *self._watchers}, return_when=asyncio.FIRST_COMPLETED)",
    ): "a run has no time limit; Ctrl-C and a dead service end it",
    ("cli/run/session.py:Session._first_of", "self._stop.wait()"): "one of the ends of the wait above",
    (
        "cli/eval/session.py:EvalSession.run",
        "asyncio.wait({work, failed, stopped}, return_when=asyncio.FIRST_COMPLETED)",
    ): "an evaluation has no time limit; Ctrl-C and a dead process end it",
    ("cli/eval/session.py:EvalSession.run", "self._stop.wait()"): "one of the ends of the wait above",
    ("cli/run/watching.py:follow_to_end", "listener.over.wait()"): "a task; the loop looks every second",
    ("cli/run/watching.py:follow_to_end", "stop.wait()"): "a task; the loop looks every second",
    (
        "cli/run/processes.py:Supervisor._keep_running",
        "process.wait()",
    ): "a service lives as long as the run; `stop` kills it",
    (
        "cli/run/processes.py:Supervisor.finished",
        "self.running[name].done.wait()",
    ): "one of the ends of Session._first_of",
    ("cli/run/processes.py:Supervisor._reap", "r.process.wait()"): "a task; the wait behind it has KILL_S",
    ("services/learner/ranks/launch.py:run_ranks", "process.wait()"): "it was killed",
    ("cli/run/warden.py:main", "sys.stdin"): "the warden lives until its command closes the pipe or dies",
    ("shared/rewards/equality_worker.py:main", "sys.stdin"): "a worker lives until the pool closes the pipe or dies",
    ("shared/rewards/own_worker.py:main", "asked.get()"): "the thread that reads the pipe ends the worker with it",
    (
        "cli/chaos/session.py:ChaosSession._hurt",
        "asyncio.Event().wait()",
    ): "a watcher never returns; the session stops it",
    (
        "cli/chaos/proxy.py:Link._accept",
        "asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)",
    ): "a link lasts as long as its ends; `cut` breaks it",
    (
        "services/actor/transports/redis_chunks.py:RedisReceiver._received",
        "asyncio.gather(*taking, return_exceptions=True)",
    ): "they were stopped",
    # a worker's queue: idle is what it is when nothing comes
    (
        "services/replay/service.py:Replay._serve",
        "arrived.get()",
    ): "`_look` wakes it when something has to be done; /health says what is waited for",
    (
        "services/replay/service.py:Replay._look",
        "await arrived.put([])",
    ): "the worker empties it, and all of them end together",
    (
        "services/replay/service.py:_forward",
        "await queue.put(entries)",
    ): "the worker empties it, and all of them end together",
    ("services/env_search/batcher.py:Batcher.run", "self._arrived.wait()"): "nothing to search",
    (
        "services/actor/engines/torch_engine.py:TorchEngine._take_commands",
        "self._commands.get(block=idle)",
    ): "nothing to generate; `close` sends the end",
    # an answer of the engine: actor/heartbeat.py watches its progress and ends an actor whose engine has stopped
    (
        "services/actor/engines/torch_engine.py:TorchEngine.verify",
        "asyncio.to_thread(self._loaded[0].read, directory, notice.digest)",
    ): "as long as the disk takes: the swap's deadline begins behind it, and rollouts go on",
    (
        "services/actor/evaluate.py:put_beside",
        "asyncio.to_thread(weights.digest_of, adapters)",
    ): "as long as the disk takes: nothing else goes on yet",
    (
        "services/actor/engines/torch_engine.py:TorchEngine.swap",
        "asyncio.to_thread(malloc.give_back, notice.version.number)",
    ): "a call of the C library, of a fraction of a second",
    (
        "services/actor/engines/torch_engine.py:TorchEngine.generate",
        "await future",
    ): "watch_engine; and the group's deadline cancels it",
    (
        "services/actor/engines/torch_engine.py:TorchEngine._call",
        "await future",
    ): "a swap has weights.swap_timeout_s; loading takes what the disk takes",
    (
        "services/actor/engines/vllm_engine.py:VllmEngine._outputs",
        "self._llm.generate(prompt, parameters, name, lora_request=self._adapter)",
    ): "watch_engine; and the group's deadline cancels it",
    (
        "services/actor/engines/vllm_engine.py:VllmEngine._request",
        "self._outputs(tokens_input(ids), parameters)",
    ): "see _outputs",
    (
        "services/actor/engines/vllm_engine.py:VllmEngine._score",
        "self._outputs(tokens_input(list(tokens)), parameters)",
    ): "see _outputs; a swap has weights.swap_timeout_s",
    (
        "services/actor/evaluate.py:_answer",
        "asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)",
    ): "watch_engine ends it after STUCK_S",
    # bounded by something that does not stand in the same function
    (
        "services/actor/retrieval.py:RetrievalClient.search",
        "await answer",
    ): "its request has env.timeout_s and env.retries, and always answers",
    (
        "services/actor/retrieval.py:RetrievalClient._read",
        "response.aiter_bytes()",
    ): "each read has the client's time limit",
    ("services/env_search/requests.py:read_body", "chunks"): "the request has a deadline in app.py",
    (
        "services/replay/window/answers.py:RequestLimit.__call__",
        "self._free.acquire()",
    ): "who holds it waits for Redis for REDIS_S at most",
    (
        "services/env_search/build_process.py:_build.end_with_parent",
        "parent.join()",
    ): "a daemon thread that watches for the parent's end",
    (
        "shared/workers.py:Worker._receive",
        "self._process.stdout.readline()",
    ): "select has seen the line, which is written in one piece",
    ("shared/workers.py:Worker.kill", "self._process.wait()"): "it was killed",
    ("cli/run/warden.py:Warden.close", "self._process.wait()"): "it was killed",
    (
        "shared/transports/carrier.py:main",
        "asked.get()",
    ): "a carrier lives until its pipe is closed, by whoever or by death",
    (
        "shared/transports/carrier.py:Member.take_part",
        "dist.all_reduce(whole)",
    ): "PATIENCE_S; whoever asked kills the carrier in any case",
    ("shared/transports/carrier.py:_send", "dist.broadcast(data.to(device), 0)"): "as above",
    ("shared/transports/carrier.py:_receive", "dist.broadcast(data, 0)"): "as above",
    (
        "services/actor/transports/broadcast.py:BroadcastReceiver._taking",
        "asyncio.to_thread(call)",
    ): "a carrier has START_S to start and a number of seconds by the size of the version",
    ("services/learner/ranks/members.py:Ranks.add_up", "dist.all_reduce(gradient)"): "PATIENCE",
    ("services/learner/ranks/members.py:Ranks._reduced", "dist.all_reduce(value, how, group=self.group)"): "PATIENCE",
    ("services/learner/ranks/members.py:Ranks.all", "dist.all_gather(parts, own, group=self.group)"): "PATIENCE",
    (
        "services/learner/ranks/members.py:Ranks.all",
        "dist.all_gather(sizes, torch.tensor([len(message)]), group=self.group)",
    ): "PATIENCE",
    (
        "services/learner/ranks/members.py:Ranks.tell",
        "dist.broadcast(size, 0, group=self.orders)",
    ): "an order comes when there is work; a rank 0 that ends takes the others with it",
    (
        "services/learner/ranks/members.py:Ranks.tell",
        "dist.broadcast(data, 0, group=self.orders)",
    ): "its size was told",
    (
        "services/learner/ranks/launch.py:run_ranks",
        "while not (ended := [n for n, process in enumerate(ranks) if process.poll() is not None and "
        "(process.returncode or not n)])",
    ): "the learner lasts as long as its ranks; one that hangs ends another by PATIENCE",
    ("cli/chaos/proxy.py:Link._pump", "while (data := (await reader.read(CHUNK)))"): "`cut` and `close` end it",
    ("cli/chaos/session.py:ChaosSession._until", "while not condition()"): "a watcher; the session stops it",
    ("shared/cancellation.py:to_the_end", "asyncio.wait({task})"): "the work bounds its own time",
    ("shared/rewards/equality.py:_Verdicts.get", "with self._lock"): "a dictionary's moment",
    ("shared/rewards/equality.py:_Verdicts.put", "with self._lock"): "a dictionary's moment",
    ("shared/metrics_server.py:MetricsServer.process_request", "with self._changing"): "a dictionary's moment",
    ("shared/metrics_server.py:MetricsServer.shutdown_request", "with self._changing"): "a dictionary's moment",
    ("shared/gpu_lease.py:GpuLease._leave", "with self._leaving"): "its holder ends the process",
    (
        "shared/workers.py:Pool.worker",
        "self._free.acquire(timeout=None if patience_s is None else max(patience_s, 0.0))",
    ): "who has a worker gives it back after START_S and its time limit at most",
    ("shared/workers.py:Pool._give_back", "with self._lock"): "a list's moment",
    ("shared/workers.py:Pool._take", "with self._lock"): "a list's moment",
    ("shared/workers.py:Pool.stop", "with self._lock"): "a list's moment",
    (
        "cli/bench.py:_measure",
        "child.communicate()",
    ): "a figure takes as long as it takes, in front of a person",
    ("cli/glance.py:_groups", "await saved"): "a Redis command, under its name",
    ("cli/glance.py:_groups", "await last"): "a Redis command, under its name",
    ("cli/glance.py:_length", "await reply"): "a Redis command, under its name",
    # an end of a group of tasks, a pool, a thread
    ("services/actor/service.py:Actor.run", "async with asyncio.TaskGroup() as loops"): "the service's own loops",
    ("services/replay/service.py:Replay._serve", "async with asyncio.TaskGroup() as tasks"): "the service's own loops",
    ("services/replay/__main__.py:serve", "async with asyncio.TaskGroup() as tasks"): "the service's own loops",
    (
        "services/actor/evaluate.py:Evaluation.run",
        "async with asyncio.TaskGroup() as group",
    ): "each rollout has PATIENCE deadlines; watch_engine ends it after STUCK_S",
    (
        "services/actor/scoring.py:score_rollouts",
        "loop.run_in_executor(_SCORERS, _score, r, asked, config, deadline)",
    ): "the wait behind it has the deadline and late_s",
    (
        "services/env_search/batcher.py:Batcher._search_batch",
        "loop.run_in_executor(self._thread, search_keys, self._backend, keys)",
    ): "looked at every LOOK_S: behind one that hangs nobody waits, and one that is stuck ends the process",
    (
        "services/actor/engines/weight_files.py:read_verified.take",
        "with file.open('rb') as stream, ThreadPoolExecutor(1) as pool",
    ): "the digest of a parameter in memory",
    (
        "services/actor/engines/weight_files.py:read_verified.take",
        "adding.result()",
    ): "the digest of a parameter in memory",
    (
        "services/learner/weights/digest_beside.py:DigestBeside.written",
        "with ThreadPoolExecutor(1) as pool",
    ): "the digest of a parameter in memory",
    (
        "services/learner/weights/model_writer.py:written",
        "adding.result()",
    ): "the digest of a parameter in memory",
    (
        "services/learner/weights/checkpoint.py:save",
        "with ThreadPoolExecutor(1) as pool",
    ): "as long as the disk takes",
    ("services/learner/weights/checkpoint.py:save", "synced.result()"): "as long as the disk takes",
    (
        "services/learner/weights/transports/redis_chunks.py:_ahead",
        "with ThreadPoolExecutor(AHEAD) as pool",
    ): "chunks of a known size are read and compressed",
    (
        "services/learner/weights/transports/redis_chunks.py:_ahead",
        "begun.popleft().result()",
    ): "chunks of a known size are read and compressed",
    (
        "shared/transports/carrier.py:_send",
        "with ThreadPoolExecutor(1) as pool",
    ): "as long as the disk takes; whoever asked kills the carrier in any case",
    ("shared/transports/carrier.py:_send", "reading.result()"): "as above",
    ("shared/transports/carrier.py:_receive", "with ThreadPoolExecutor(1) as pool"): "as above",
    ("shared/transports/carrier.py:_receive", "writing.result()"): "as above",
    # a lock: what its holder waits for
    (
        "services/actor/engines/vllm_engine.py:VllmEngine.swap",
        "async with self._swapping",
    ): "only the follower swaps, and ends a swap after weights.swap_timeout_s",
    (
        "services/actor/follower.py:Follower._adopt",
        "async with self._swapped",
    ): "who holds it only notifies; who waits on it lets it go",
    (
        "services/replay/window/history.py:History.look",
        "async with self._lock",
    ): "who calls it has REDIS_S or less",
    ("shared/told_to_stop.py:_listen", "os.read(heard, 1)"): "a daemon thread that waits for a signal",
    # bytes that are there, or that go as fast as the other end takes them
    ("cli/top.py:_keys.pressed", "os.read(descriptor, 64)"): "the loop calls it when there is something to read",
    ("cli/chaos/proxy.py:Link._pump", "writer.drain()"): "`cut` and `close` end it",
}

# what is called in a thread ends by itself: what bounds it
FILE, COMPUTES = "reads or writes files of a known size", "computes"
IN_THREADS: dict[str, str] = {
    "Codec": FILE,
    "_changed": COMPUTES,
    "_finish": FILE,
    "_is_whole": FILE,
    "_missing": FILE,
    "_question": FILE,
    "_served_index": "its request has a time limit",
    "_stat": FILE,
    "_written": FILE,
    "answer_classes": "each comparison has its time limit",
    "AsyncLLM.from_engine_args": "the actor's start_engine",
    "chunks.read": FILE,
    "directory.is_dir": FILE,
    "fingerprints": FILE,
    "forget": FILE,
    "lease.release": "Redis commands",
    "lease.try_claim": "Redis commands, and nvidia-smi with a time limit",
    "llm.shutdown": "is given 2 s",
    "only.try_begin": "Redis commands",
    "path.read_bytes": FILE,
    "read_weights": FILE,
    "refuse_strangers": "Redis commands, over at most LOOKED_AT keys",
    "render": COMPUTES,
    "self._arguments": "imports",
    "self._root.mkdir": FILE,
    "self._thread.join": "is given 4 s",
    "shutil.rmtree": FILE,
    "take_gpus": "nvidia-smi with a time limit",
    "together": FILE,
    "wait_until_up": "is given how long",
    "weights.verify": FILE,
}
# what is gathered are tasks that were cancelled, or that bound themselves
GATHERED: dict[str, str] = {
    "cli/chaos/proxy.py:Link.close": "cancelled",
    "cli/chaos/session.py:ChaosSession._hurt": "each fault has its seconds",
    "cli/run/processes.py:Supervisor.stop": "every process is given KILL_S",
    "services/actor/engines/vllm_engine.py:VllmEngine.score": "see _outputs",
    "services/actor/group.py:_play_all": "cancelled",
    "services/actor/retrieval.py:RetrievalClient._answer": "each request has env.timeout_s and env.retries",
    "services/actor/tasks.py:Tasks.stop": "cancelled",
    "services/env_search/app.py:Retriever.retrieve": "the request has a deadline",
    "services/env_search/app.py:create_app.lifespan": "cancelled",
}


def waits_in(source: str) -> Iterator[tuple[str, str]]:
    """(function, expression) of each wait without a deadline."""

    def visit(node: ast.AST, function: str, bounded: bool, blocking: bool) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function, bounded = f"{function}.{node.name}".lstrip("."), False
            blocking = not isinstance(node, ast.AsyncFunctionDef)
        if isinstance(node, ast.With | ast.AsyncWith):
            bounded = bounded or any("asyncio.timeout(" in ast.unparse(item) for item in node.items)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.wait_for" and len(node.args) == 2:
            bounded = True
        # in an async function this is a task that has ended: one that has not raises
        if not bounded and (_waits(node) or (blocking and _called_bare(node, {"result"}))):
            yield function, _spoken(node)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function, bounded, blocking)

    yield from visit(ast.parse(source), "", False, True)


def _spoken(node: ast.AST) -> str:
    if isinstance(node, ast.For | ast.AsyncFor):
        return ast.unparse(node.iter)
    if isinstance(node, ast.With | ast.AsyncWith | ast.While):
        return ast.unparse(node).partition(":\n")[0]
    return ast.unparse(node)


def _waits(node: ast.AST) -> bool:
    if isinstance(node, ast.Await):
        if isinstance(node.value, ast.Call):
            called = node.value.func
            return isinstance(called, ast.Attribute) and called.attr == "put" and len(node.value.args) == 1
        return True  # a future or a task
    if isinstance(node, ast.For):
        return ast.unparse(node.iter) == "sys.stdin"
    if isinstance(node, ast.AsyncFor):
        return True
    if isinstance(node, ast.With):  # a lock: whoever holds it may be waiting too; or a pool, left with its last thread
        entered = [ast.unparse(item.context_expr) for item in node.items]
        return any(re.search(r"lock\)?$|PoolExecutor\(|^self\.\w+$", text, re.IGNORECASE) for text in entered)
    if isinstance(node, ast.AsyncWith):
        return any(_is_lock_or_group(item.context_expr) for item in node.items)
    if isinstance(node, ast.While):  # asks again and again, and nothing in it ends that but what it waits for
        return _polls(node)
    return isinstance(node, ast.Call) and _call_waits(node)


def _is_lock_or_group(entered: ast.expr) -> bool:
    """A lock or a condition is entered by its name, anything else by a call; a group waits for its tasks."""
    return isinstance(entered, ast.Name | ast.Attribute) or ast.unparse(entered) == "asyncio.TaskGroup()"


def _called_bare(node: ast.AST, methods: set[str]) -> bool:
    """Whether it is a call of such a method with no argument but `block`, or a time limit that may be none."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in methods:
        return False
    return not node.args and all(k.arg == "block" or _is_no_limit(k) for k in node.keywords)


def _is_no_limit(given: ast.keyword) -> bool:
    return given.arg == "timeout" and "None" in ast.unparse(given.value)


def _polls(loop: ast.While) -> bool:
    text = ast.unparse(loop)
    sleeps = re.search(r"\b(time|asyncio)\.sleep\(", text)
    for_ever = "while True" in text and "LOCK_NB" not in text  # a service's own loop, which is no wait
    return bool(sleeps) and not for_ever and not re.search(r"monotonic|deadline|\.due\(", text)


def _call_waits(call: ast.Call) -> bool:
    name, given = ast.unparse(call.func), {k.arg: ast.unparse(k.value) for k in call.keywords}
    method = name.rpartition(".")[2]
    if ("timeout" in given or "socket_timeout" in given) and not any(map(_is_no_limit, call.keywords)):
        return False
    if method in ("xread", "xreadgroup"):
        return given.get("block") == "0"  # to Redis this is for ever
    if given.get("block") == "False":
        return False
    return (
        _called_bare(call, SEEN_THROUGH)
        or (name in ("asyncio.wait", "asyncio.gather", "asyncio.to_thread"))
        or (name.startswith("dist.") and method in COLLECTIVE)
        or (name.startswith("subprocess.") and method in ("run", "call", "check_call", "check_output"))
        or (name in ("os.read", "os.wait", "os.waitpid"))
        or method == "run_in_executor"
        or (method == "wait_for" and len(call.args) == 1)  # of a condition
        or method in ("urlopen", "AsyncClient", "create_connection")
        or (name in ("httpx.Client", "httpx.get", "httpx.post", "socket.create_connection"))
        or (name == "select.select" and len(call.args) < 4)
        or (name == "fcntl.flock" and "LOCK_NB" not in ast.unparse(call) and "LOCK_UN" not in ast.unparse(call))
        or (method == "from_url" and "Redis" in name and "options" not in ast.unparse(call))
        or (name in ("redis.Redis", "redis.asyncio.Redis"))
    )


def found() -> set[tuple[str, str]]:
    """(file and function, expression) over all of the code."""
    out = set()
    for folder in ("services", "shared", "cli"):
        for file in (ROOT / folder).rglob("*.py"):
            for function, what in waits_in(file.read_text()):
                place = f"{file.relative_to(ROOT)}:{function}"
                threaded = re.match(r"asyncio\.to_thread\(([\w.]+)", what)
                if (threaded and threaded[1] in IN_THREADS) or (
                    what.startswith("asyncio.gather(") and place in GATHERED
                ):
                    continue
                out.add((place, what))
    return out


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("event.wait()", True),
        ("event.wait(3)", False),
        ("process.wait(timeout=3)", False),
        ("queue.get()", True),
        ("table.get('a')", False),
        ("commands.get(block=idle)", True),
        ("', '.join(words)", False),
        ("thread.join()", True),
        ("subprocess.run(['ls'])", True),
        ("subprocess.run(['ls'], timeout=2)", False),
        ("redis.Redis.from_url(url)", True),
        ("redis.Redis.from_url(url, socket_timeout=5.0)", False),
        ("client.xread({s: '0'}, block=0)", True),
        ("client.xread({s: '0'}, block=1000)", False),
        ("httpx.AsyncClient()", True),
        ("async def f():\n  await future", True),
        ("async def f():\n  async with asyncio.timeout(2):\n    await future", False),
        ("async def f():\n  await asyncio.wait_for(event.wait(), 2)", False),
        ("async def f():\n  await queue.put(1)", True),
        ("async def f():\n  async for x in stream:\n    pass", True),
        ("dist.all_reduce(value)", True),
        ("async def f():\n  await asyncio.to_thread(work)", True),
        ("async def f():\n  await asyncio.gather(one, other)", True),
        ("with self._lock:\n  pass", True),
        ("with file.open() as f:\n  pass", False),
        ("with self._changing:\n  pass", True),
        ("with self._changed():\n  pass", False),
        ("free.acquire(timeout=None if patient else 2)", True),
        ("subprocess.run(['ls'], timeout=None)", True),
        ("with ThreadPoolExecutor(1) as pool:\n  pass", True),
        ("async def f():\n  async with self._swapped:\n    pass", True),
        ("async def f():\n  async with asyncio.timeout(2), self._swapped:\n    pass", False),
        ("async def f():\n  async with client.pipeline() as pipe:\n    pass", False),
        ("async def f():\n  async with asyncio.TaskGroup() as tasks:\n    pass", True),
        ("async def f():\n  await swapped.wait_for(there)", True),
        ("async def f():\n  await asyncio.wait_for(swapped.wait_for(there), 2)", False),
        ("swapped.wait_for(there, 2)", False),
        ("async def f():\n  await loop.run_in_executor(pool, work)", True),
        ("async def f():\n  await writer.drain()", True),
        ("future.result()", True),
        ("future.result(timeout=2)", False),
        ("async def f():\n  return task.result()", False),
        ("os.read(pipe, 64)", True),
        ("while not there():\n  time.sleep(1)", True),
        ("while not there() and time.monotonic() < end:\n  time.sleep(1)", False),
        ("fcntl.flock(f, fcntl.LOCK_EX)", True),
        ("fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)", False),
        ("while True:\n  try_lock(fcntl.LOCK_NB)\n  time.sleep(1)", True),
        ("while True:\n  try_lock(fcntl.LOCK_NB)\n  if time.monotonic() > end: raise Late\n  time.sleep(1)", False),
    ],
)
def test_a_wait_is_seen_where_there_is_one(line: str, seen: bool) -> None:
    assert bool(list(waits_in(line))) == seen


def test_every_wait_has_a_deadline_or_a_reason() -> None:
    waits = found()
    assert waits - set(UNBOUNDED) == set(), "give it a deadline, or say here why it needs none"
    assert set(UNBOUNDED) - waits == set(), "these are gone"
    assert all(UNBOUNDED.values())
