# syntax=docker/dockerfile:1
# eb-saliency with the bundled network, for CPUs or for NVIDIA GPUs (5 GB larger):
#   docker build -t eb-saliency .
#   docker build -t eb-saliency:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/eb-saliency
ENV PATH=/opt/eb-saliency/bin:$PATH
# Kept apart from the source, so that changes to it do not rebuild the largest layer
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --index-url "$TORCH_INDEX" "torch>=2.8,<2.16" "torchvision>=0.23,<0.30"
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY ebcli ebcli
RUN --mount=type=cache,target=/root/.cache/pip pip install .

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.licenses=MIT
COPY --from=build /opt/eb-saliency /opt/eb-saliency
# Writable for any docker run --user; a volume at /cache keeps downloaded weights
RUN useradd --uid 1000 --create-home eb-saliency && mkdir --mode=1777 /cache /work
ENV PATH=/opt/eb-saliency/bin:$PATH TORCH_HOME=/cache/torch XDG_CACHE_HOME=/cache MPLCONFIGDIR=/tmp/matplotlib
USER 1000
WORKDIR /work
ENTRYPOINT ["eb-saliency"]
CMD ["--help"]
