"""The routes of the page, and their answers.

One thread computes: requests wait in a row, and one that is given up leaves it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ebcli.datatypes.arrays import FloatArray
from ebcli.datatypes.atlas import Atlas
from ebcli.datatypes.explanation import Explanation, JsonObject, Map, Size, Subject
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.pages import atlas_data
from ebcli.drawing.painters import limits, opacity, overlay_colors, palette
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, EbcliError, ImageError, UnknownClassError, in_words
from ebcli.files.clips import Clips
from ebcli.files.sources import Source
from ebcli.methods.table import PICTURE, Method
from ebcli.pages.shell import page
from ebcli.run.plan import RunPlan
from ebcli.serve.access import refuse
from ebcli.serve.network import Network
from ebcli.serve.photos import CAMERA, SIDE, SMALL, Photos
from ebcli.serve.volumes import PlanesView, Voxel, parse_voxel
from ebcli.workers import Workers

T = TypeVar("T")

_FAILURE = "this failed: the terminal of eb-saliency serve says why"
_UPLOAD_TIMEOUT = 60  # seconds
_BINARY = "application/octet-stream"
_STYLES = {"unsigned": DrawingStyle(), "signed": DrawingStyle(signed=True)}  # of color scales
# which only a header can say; the page has the rest
_NO_FRAMES = {"content-security-policy": "frame-ancestors 'none'"}


class Page:
    """The photos, the networks, and what answers requests.

    Args:
        photos: the photos.
        networks: the networks.
        workers: the process that decodes photos, of which one at a time is in memory.
        tell: what prints a sentence on the terminal.

    Attributes:
        app: the application.
    """

    def __init__(
        self, photos: Photos, networks: Sequence[Network], workers: Workers, tell: Callable[[str], None]
    ) -> None:
        self._photos = photos
        self._networks = {str(number): network for number, network in enumerate(networks)}
        self._workers = workers
        self._tell = tell
        self._turn = asyncio.Lock()
        self._computing = ThreadPoolExecutor(1)
        answers = {
            "/": self._index,
            "/colors": self._colors,
            "/status": self._status,
            "/classes": self._classes,
            "/photo": self._photo,
            "/subjects": self._subjects,
            "/maps": self._maps,
            "/atlas": self._atlas,
            "/command": self._command,
            "/picture": self._picture,
        }
        routes = [Route(path, answer) for path, answer in answers.items()]
        routes.append(Route("/photos", self._upload, methods=["POST"]))
        routes.append(Route("/frame", self._frame, methods=["POST"]))
        problems: dict[Any, Any] = {
            EbcliError: _explain,
            ClientDisconnect: _drop,
            HTTPException: _refuse,
            Exception: self._fail,
        }
        self.app = Starlette(routes=routes, exception_handlers=problems, lifespan=self._loading)

    @asynccontextmanager
    async def _loading(self, _app: Starlette) -> AsyncIterator[None]:
        """Load the networks one after the other, before the first request that waits for one."""
        loading = [asyncio.create_task(self._load(network)) for network in self._networks.values()]
        yield
        for task in loading:
            task.cancel()

    async def _load(self, network: Network) -> None:
        try:
            await self._compute(None, network.load)
        except EbcliError as error:
            network.problem = str(error)
            self._tell(network.problem)

    async def _compute(self, request: Request | None, work: Callable[..., T], *arguments: object) -> T:
        """The result of some work when its turn has come.

        Raises:
            ImageError: the work failed, or nobody waits for it any more.
        """
        async with self._turn:  # which is fair
            if request is not None and await request.is_disconnected():
                raise ImageError("it was given up")
            try:
                return await asyncio.get_running_loop().run_in_executor(self._computing, work, *arguments)
            except EbcliError:
                raise
            except Exception as error:  # a network can fail in any way, on one photo
                self._tell(in_words(error))
                raise ImageError(_FAILURE) from error

    async def _decode(self, work: Callable[..., T], *arguments: object) -> T:
        """The result of some work on photos."""
        return await asyncio.wrap_future(self._workers.submit(work, *arguments))

    def _parse_request(self, request: Request) -> tuple[RunPlan, Network, Source]:
        query = request.query_params
        network = self._network(request)
        return network.plan(query), network, self._photos.source(query.get("photo", ""))

    def _network(self, request: Request) -> Network:
        number = request.query_params.get("network") or "0"
        if number in self._networks:
            return self._networks[number]
        raise ConfigurationError("there is no such network: open the page again")

    async def _fail(self, _request: Request, error: Exception) -> Response:
        self._tell(in_words(error))
        return refuse(500, _FAILURE)

    async def _index(self, _request: Request) -> Response:
        return HTMLResponse(page("live.html"), headers=_NO_FRAMES)

    async def _colors(self, _request: Request) -> Response:
        return JSONResponse(await self._decode(colors))

    async def _status(self, _request: Request) -> Response:
        networks = [_network_status(network) for network in self._networks.values()]
        axes = {network.axes for network in self._networks.values()}
        photos = self._photos.names_for(axes)
        return JSONResponse({"networks": networks, "photos": photos, "more": self._photos.num_hidden})

    async def _classes(self, request: Request) -> Response:
        return JSONResponse(self._network(request).loaded.categories or [])

    async def _photo(self, request: Request) -> Response:
        query = request.query_params
        longest = SMALL if "small" in query else SIDE
        content = await self._decode(self._photos.encode_photo, query.get("photo", ""), longest)
        return Response(content, media_type="image/jpeg")

    async def _subjects(self, request: Request) -> Response:
        plan, network, source = self._parse_request(request)
        subjects = await self._compute(request, network.subjects, plan, source)
        return JSONResponse(subjects_json(subjects))

    async def _maps(self, request: Request) -> Response:
        plan, network, source = self._parse_request(request)
        voxel = parse_voxel(request.query_params.get("voxel", ""))
        is_stacked = "stacked" in request.query_params
        content = await self._compute(request, _maps_of, network, plan, source, voxel, is_stacked)
        return Response(content, media_type=_BINARY)

    async def _atlas(self, request: Request) -> Response:
        _, network, source = self._parse_request(request)
        content = await self._compute(request, _atlas_of, network, network.atlas_plan(), source)
        return Response(content, media_type=_BINARY)

    async def _command(self, request: Request) -> Response:
        plan, network, _ = self._parse_request(request)
        return JSONResponse({"command": network.command(plan, self._name(request))})

    def _name(self, request: Request) -> str:
        return self._photos.names[request.query_params["photo"]]

    async def _picture(self, request: Request) -> Response:
        plan, network, source = self._parse_request(request)
        name = network.file_name(plan, self._name(request))
        content = await self._compute(request, network.picture, plan, source)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, headers=headers, media_type="image/png")

    async def _upload(self, request: Request) -> Response:
        content = await self._content(request)
        name = request.query_params.get("name", "")
        return JSONResponse({"key": await self._decode(self._photos.add, name, content)})

    async def _frame(self, request: Request) -> Response:
        """The map of a frame of the page's camera, which is kept nowhere, and its likeliest classes."""
        network = self._network(request)
        plan = network.plan(request.query_params)
        source = Source(Path(f"{CAMERA}.jpg"), content=await self._content(request))
        content = await self._compute(request, _frame_maps, network, plan, source)
        return Response(content, media_type=_BINARY)

    async def _content(self, request: Request) -> bytes:
        """The body of a request. Raises HTTPException if it is larger than an upload may be."""
        content = bytearray()
        max_bytes = self._photos.most_bytes
        too_large = HTTPException(413, f"it is larger than {max_bytes} bytes: raise EB_SALIENCY_MAX_BYTES")
        length = int(request.headers.get("content-length", 0))  # the server has checked that it is a number
        if length > max_bytes:
            raise too_large
        try:
            async with asyncio.timeout(_UPLOAD_TIMEOUT):
                async for part in request.stream():
                    content += part
                    if len(content) > max_bytes:
                        raise too_large
        except TimeoutError as error:
            problem = f"it took longer than {_UPLOAD_TIMEOUT} s to arrive: upload a smaller one"
            raise HTTPException(408, problem) from error
        return bytes(content)


def _maps_of(network: Network, plan: RunPlan, source: Source, voxel: Voxel | None, is_stacked: bool) -> bytes:
    explanation = network.explain(plan, source)
    size = network.size(source)
    slices = network.slices(source)
    if slices is not None:
        return encode_planes(explanation, size, slices, network.planes(plan, source, voxel, is_stacked))
    fields = {} if explanation.answer is None else {"answer": explanation.answer}
    return encode_maps(explanation, size, **fields)


def _frame_maps(network: Network, plan: RunPlan, source: Source) -> bytes:
    frame = network.explain_frame(plan, source)
    return encode_maps(frame.explanation, frame.size, likeliest=subjects_json(frame.subjects))


def _atlas_of(network: Network, plan: RunPlan, source: Source) -> bytes:
    explanation = network.explain(plan, source)
    size = network.size(source)
    return encode_maps(explanation, size, atlas=atlas_data(Atlas.from_maps(explanation.maps), size))


async def _drop(_request: Request, _error: Exception) -> Response:
    """The answer to an upload that was aborted, which nobody reads."""
    return Response(status_code=400)


async def _refuse(_request: Request, error: HTTPException) -> Response:
    return refuse(error.status_code, error.detail)


async def _explain(_request: Request, error: Exception) -> Response:
    if not isinstance(error, UnknownClassError):
        return refuse(400, str(error))
    # without its hint, which is for the command
    problem = f"there is no class {error.name!r}"
    return JSONResponse({"problem": problem, "name": error.name, "near": error.near}, 400)


def _network_status(network: Network) -> JsonObject:
    """What the page is told of a network."""
    return {
        "name": network.title,
        "ready": network.is_ready,
        "problem": network.problem,
        "doubt": network.doubt,
        "task": network.loaded.task if network.is_ready else None,
        "layers": network.layers,
        "layer": network.default,
        "methods": [_method_status(method) for method in network.methods],
        "texts": network.takes_texts,
        "answers": network.answers,
        "volumes": network.axes == "DHW",
    }


def _method_status(method: Method) -> JsonObject:
    return {
        "name": method.name,
        "source": method.source,
        "signed": method.is_signed,
        "against": method.takes_against,
        "picture": method.place == PICTURE,
    }


def colors() -> JsonObject:
    """The colors and the opacities of the 256 levels of each scale."""
    scales = {}
    for name, style in _STYLES.items():
        levels = {"overlay": overlay_colors(style), "heatmap": palette(style.colormap)}
        levels["opacity"] = (255 * opacity(style)).round().astype(int)
        scales[name] = {key: values.ravel().tolist() for key, values in levels.items()}
    return {"scales": scales, "alpha": DrawingStyle.alpha}


def subjects_json(subjects: Iterable[Subject]) -> list[JsonObject]:
    """Subjects with their boxes and outlines, in pixels of the photo."""
    return [
        {
            "index": subject.index,
            "name": subject.name,
            "score": subject.score,
            "is_value": subject.is_value,
            "box": subject.box and subject.box.xywh,
            "span": subject.span,
            "outlines": [np.asarray(line).round(1).tolist() for line in subject.outlines],
        }
        for subject in subjects
    ]


def encode_maps(explanation: Explanation, size: Size, **fields: Any) -> bytes:
    """The maps of a photo of a size (width, height): a description in JSON, then their values, 32-bit floats.

    More can be in the description. The first four bytes are its length, which spaces make a multiple of four.
    """
    maps = [_describe_map(map_, size) for map_ in explanation.maps]
    description = {"size": size, "subjects": subjects_json(explanation.subjects), "maps": maps, **fields}
    return _encode(description, [map_.display_values for map_ in explanation.maps])


def encode_planes(explanation: Explanation, size: Size, slices: Clips, view: PlanesView) -> bytes:
    """The maps of a volume with slices of a size (width, height), encoded as those of a photo are.

    The description has the picture of three planes, too, and each map has values in each of them.
    """
    maps = []
    for map_, arrays in zip(explanation.maps, view.values, strict=True):
        planes = [{**plane, "shape": array.shape} for plane, array in zip(view.planes, arrays, strict=True)]
        maps.append({**_describe_map(map_, size, slices), "planes": planes})
    description = {**view.description, "subjects": subjects_json(explanation.subjects), "maps": maps}
    return _encode(description, [array for arrays in view.values for array in arrays])


def _encode(description: JsonObject, arrays: Iterable[FloatArray]) -> bytes:
    text = json.dumps(description).encode()
    text += b" " * (-len(text) % 4)
    values = [array.astype("<f4").tobytes() for array in arrays]
    return b"".join([len(text).to_bytes(4, "little"), text, *values])


def _describe_map(map_: Map, size: Size, slices: Clips | None = None) -> JsonObject:
    """What is said of a map; the ends of its scales, None for one on which it is blank, are in the map's own units."""
    scales = {}
    for name, style in _STYLES.items():
        frame = FrameMaps.from_map(map_, size, slices, style)
        scales[name] = None if frame.is_blank else limits(map_.display_values, frame.faded_style)
    return {
        "layer": map_.layer,
        "shape": map_.values.shape,
        "place": map_.placement,
        "mass": map_.mass,
        "told": map_.evidence_words,
        "head": map_.head,
        "inputs": [*map_.inputs.items()],  # in order, which JavaScript's objects do not keep
        "columns": [(name, [*columns.items()]) for name, columns in map_.columns.items()],
        "scales": scales,
    }
