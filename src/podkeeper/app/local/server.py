"""Server of the local API: HTTP over a unix socket that only its owner may open.

    GET  /healthz                                   ok, or the problems of the agent
    GET  /info                                      version, node, root, runtime and process of the agent
    GET  /pods                                      PodList, or a Table if the client accepts one, as kubectl does
    GET  /pods/{name}, /pods/{namespace}/{name}     one Pod, by the name in its manifest or by its full name
    GET  /events, /events/{namespace}/{name}        EventList
    GET  /explain/{namespace}/{name}                state and timeline of a pod
    POST /stop/{namespace}/{name}, /start/...       stop or start a pod
    GET  /containerLogs/{namespace}/{name}/{container}?follow&previous&tailLines&sinceSeconds&sinceTime&timestamps
    GET  /exec/..., /attach/{namespace}/{name}/{container}?command&input&output&error&tty     (WebSocket)
    GET  /portForward/{namespace}/{name}?port       one TCP connection                          (WebSocket)

If the kubelet has an equivalent, paths, parameters and objects are the same. Errors are Kubernetes `Status` objects.
There is no authorization. A client that can open the socket has full access, so the mode of the socket is 0600.
"""

import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from aiohttp import web

from podkeeper.app.agent import Agent
from podkeeper.app.history_words import printed
from podkeeper.app.local.channels import PROTOCOL, relay
from podkeeper.app.local.forwards import Forwards, NoForwards, ready_sandbox, requested_port
from podkeeper.app.local.logs import LogFile, NoLog, is_running, log_file, read_file
from podkeeper.app.local.paths import SOCKET_VARIABLE, path_length_error
from podkeeper.app.local.pod_queries import AmbiguousPodName, PodNotFound, PodQueries
from podkeeper.app.local.stop_filter import StopFilter
from podkeeper.app.local.streams import Streams, StreamSession
from podkeeper.linux.logline import ZERO_TIME, BadLogLine, UnixNanoseconds, parse_log_time
from podkeeper.model.errors import AgentError, BadInput, Problem, RuntimeRefused, TryLater
from podkeeper.model.k8s.core import Pod
from podkeeper.model.k8s.meta import Status
from podkeeper.model.pods import uid_of
from podkeeper.model.runtime import RecordState
from podkeeper.rules.logs.reading import LogOptions
from podkeeper.rules.validate.names import missing, wrong

log = logging.getLogger(__name__)

SOCKET_MODE = 0o600
SHUTDOWN_SECONDS = 0.5
# A client that sends more at once would make the agent hold it in memory.
MAX_MESSAGE_BYTES = 4 * 2**20
MAX_DIGITS = 19
_JSON = "application/json"
_TRUE = frozenset({"1", "t", "true", "yes", ""})  # "" for `?follow` without a value


class SocketInUse(AgentError):
    """Another agent listens on the socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    version: str
    node: str
    root: str
    runtime: str
    pid: int
    paths: tuple[str, ...] = ()


class LocalServer:
    def __init__(
        self,
        *,
        agent: Agent,
        queries: PodQueries,
        stop_filter: StopFilter,
        streams: Streams,
        info: AgentInfo,
        path: Path,
        forwards: Forwards | None = None,
    ) -> None:
        self._agent = agent
        self._stop_filter = stop_filter
        self._streams = streams
        self._forwards = forwards or NoForwards()
        self._info = info
        self._path = path
        self._queries = queries
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. Raises SocketInUse, BadInput."""
        listening = listen(self._path)
        app = web.Application(middlewares=[_errors_as_status])
        app.add_routes(self._routes())
        # Cancel handlers of disconnected clients. Otherwise `logs -f` would be served until its container exits.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
            with suppress(FileNotFoundError):
                self._path.unlink()

    def _routes(self) -> list[web.RouteDef]:
        one = "{namespace}/{name}"
        return [
            web.get("/healthz", self._healthz),
            web.get("/info", self._get_info),
            web.get("/pods", self._pods),
            web.get("/pods/{name}", self._pod),
            web.get(f"/pods/{one}", self._pod),
            web.get("/events", self._events),
            web.get(f"/events/{one}", self._events),
            web.get(f"/explain/{one}", self._explain),
            web.post(f"/stop/{one}", self._stop),
            web.post(f"/start/{one}", self._start),
            web.get(f"/containerLogs/{one}/{{container}}", self._logs),
            web.get(f"/exec/{one}/{{container}}", self._exec),
            web.get(f"/attach/{one}/{{container}}", self._attach),
            web.get(f"/portForward/{one}", self._port_forward),
        ]

    # ---- reading ----

    async def _healthz(self, request: web.Request) -> web.Response:
        problems = self._queries.health()
        return web.Response(text="\n".join(problems) or "ok", status=500 if problems else 200)

    async def _get_info(self, request: web.Request) -> web.Response:
        return _json(self._info)

    async def _pods(self, request: web.Request) -> web.Response:
        wants_table = "as=Table" in request.headers.get("Accept", "").replace(" ", "")
        return _json(self._queries.table() if wants_table else self._queries.pod_list())

    async def _pod(self, request: web.Request) -> web.Response:
        return _json(msgspec.structs.replace(self._requested_pod(request), api_version="v1", kind="Pod"))

    async def _events(self, request: web.Request) -> web.Response:
        return _json(self._queries.events(self._requested_pod(request) if "name" in request.match_info else None))

    async def _explain(self, request: web.Request) -> web.Response:
        return _json(printed(self._queries.explain(self._requested_pod(request))))

    # ---- stopping and starting ----

    async def _stop(self, request: web.Request) -> web.Response:
        pod, grace = self._requested_pod(request), _number(request.query, "gracePeriodSeconds")
        if grace is not None:
            self._agent.kill(pod, grace)
        await self._stop_filter.stop(uid_of(pod), grace)
        return _json(self._queries.find(pod.metadata.name or "", pod.metadata.namespace or ""), status=202)

    async def _start(self, request: web.Request) -> web.Response:
        pod = self._requested_pod(request)
        await self._stop_filter.start(uid_of(pod))
        return _json(pod, status=202)

    # ---- logs ----

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        pod, query = self._requested_pod(request), request.query
        options = _log_options(query, self._queries.now())
        found = log_file(self._agent, pod, request.match_info["container"], previous=_flag(query, "previous"))
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        async for data in read_file(found.path, options, may_grow=lambda: is_running(self._agent, found)):
            await response.write(data)
        await response.write_eof()
        return response

    # ---- streams ----

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        command = request.query.getall("command", [])
        if not command:
            raise BadInput(missing("command", "use a query such as ?command=ls&command=-l"))
        log_of = self._running(request)
        tty, stdin = _flag(request.query, "tty"), _flag(request.query, "input")
        return await self._serve_stream(request, self._streams.exec(log_of.container_id, command, tty=tty, stdin=stdin))

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        log_of = self._running(request)
        tty, stdin = _flag(request.query, "tty"), _flag(request.query, "input")
        return await self._serve_stream(request, self._streams.attach(log_of, tty=tty, stdin=stdin))

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        pod, port = self._requested_pod(request), requested_port(_number(request.query, "port"))
        sandbox_id = ready_sandbox(pod, self._agent.record(uid_of(pod)).sandboxes)
        return await self._serve_stream(request, self._forwards.forward(sandbox_id, port))

    async def _serve_stream(self, request: web.Request, opening: Awaitable[StreamSession]) -> web.StreamResponse:
        session = await opening  # before the upgrade, so that an error is a normal HTTP response
        try:
            response = web.WebSocketResponse(protocols=(PROTOCOL,), max_msg_size=MAX_MESSAGE_BYTES)
            await response.prepare(request)
            await relay(session, response)
        finally:
            await session.close()
        return response

    def _running(self, request: web.Request) -> LogFile:
        """Return the running container of a request. Raises NoLog, RuntimeRefused."""
        pod, container = self._requested_pod(request), request.match_info["container"]
        found = log_file(self._agent, pod, container)
        for record in self._agent.record(found.uid).containers:
            if record.id == found.container_id and record.state is RecordState.RUNNING:
                return found
        raise RuntimeRefused(f"container {container!r} of pod {pod.metadata.name!r} is not running")

    def _requested_pod(self, request: web.Request) -> Pod:
        return self._queries.find(request.match_info["name"], request.match_info.get("namespace", ""))


# ---- the socket ----


def listen(path: Path) -> socket.socket:
    """Create a socket that only its owner may open. Replaces the socket of a dead agent.

    Raises SocketInUse and BadInput.
    """
    if too_long := path_length_error(path):
        raise BadInput(Problem(too_long))
    try:
        return _listening(path)
    except OSError as error:
        text = f"cannot listen on {path}: {error.strerror}; use another path with --socket or {SOCKET_VARIABLE}"
        raise BadInput(Problem(text)) from error


def _listening(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise SocketInUse(f"cannot listen on {path}: the file exists and is not a socket; use another --socket")
    if is_listening(path):
        raise SocketInUse(
            f"cannot listen on {path}: another agent uses it; stop that agent first, or use another --socket"
        )
    with suppress(FileNotFoundError):
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        before = os.umask(0o777 & ~SOCKET_MODE)  # not chmod after bind, because others could connect in between
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(128)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def is_listening(path: Path) -> bool:
    """Return whether a process listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True


# ---- helpers ----


@web.middleware
async def _errors_as_status(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn exceptions into responses with a Status."""
    try:
        return await handler(request)
    except PodNotFound as error:
        return _failure(404, "NotFound", str(error))
    except AmbiguousPodName as error:
        return _failure(409, "Conflict", str(error))
    except (NoLog, BadInput, RuntimeRefused) as error:
        return _failure(400, "BadRequest", str(error))
    except TryLater as error:
        return _failure(503, "ServiceUnavailable", str(error))
    except web.HTTPException as error:
        return _failure(error.status, error.reason, f"cannot {request.method} {request.path}: {error.reason}")
    except ConnectionResetError:
        raise  # the client has disconnected
    except Exception as error:
        log.exception("cannot answer %s %s", request.method, request.path)
        return _failure(500, "InternalError", f"unexpected error: {type(error).__name__}: {error}")


def _failure(code: int, reason: str, message: str) -> web.Response:
    return _json(
        Status(api_version="v1", kind="Status", status="Failure", message=message, reason=reason, code=code),
        status=code,
    )


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=_JSON, status=status)


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "false").lower() in _TRUE


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    # The API's integers have 64 bits. Python refuses to read texts with more than 4,300 digits.
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS or int(text) >= 2**63:
        raise BadInput(wrong(name, text[:40], "must be an integer from 0 to 9223372036854775807"))
    return int(text)


def _log_options(query: Mapping[str, str], now: datetime) -> LogOptions:
    return LogOptions(
        tail_lines=_number(query, "tailLines"),
        limit_bytes=_number(query, "limitBytes"),
        since=_since(query, now),
        timestamps=_flag(query, "timestamps"),
        follow=_flag(query, "follow"),
    )


def _since(query: Mapping[str, str], now: datetime) -> UnixNanoseconds:
    if "sinceTime" in query:
        try:
            return parse_log_time(query["sinceTime"].encode()).unix_nanoseconds
        except BadLogLine as error:
            detail = "must be a time in RFC 3339 format (e.g. 2026-11-15T10:00:00Z)"
            raise BadInput(wrong("sinceTime", query["sinceTime"], detail)) from error
    seconds = _number(query, "sinceSeconds")
    if seconds is None:
        return ZERO_TIME
    return UnixNanoseconds(int((now.astimezone(UTC).timestamp() - seconds) * 1e9))
