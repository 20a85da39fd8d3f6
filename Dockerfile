# syntax=docker/dockerfile:1
# eb-saliency with the bundled network. For processors; for NVIDIA's GPUs, whose libraries take 5 GB more:
#   docker build -t eb-saliency .
#   docker build -t eb-saliency:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/eb-saliency
ENV PATH=/opt/eb-saliency/bin:$PATH
# The largest layer depends on nothing that changes with the source
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --index-url "$TORCH_INDEX" "torch>=2.6" "torchvision>=0.21"
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY ebcli ebcli
RUN --mount=type=cache,target=/root/.cache/pip pip install .

FROM python:${PYTHON}-slim
COPY --from=build /opt/eb-saliency /opt/eb-saliency
# Whoever runs it (docker run --user) can keep downloaded weights in a volume at /cache
RUN useradd --uid 1000 --create-home eb-saliency && mkdir --mode=1777 /cache /work
ENV PATH=/opt/eb-saliency/bin:$PATH TORCH_HOME=/cache/torch MPLCONFIGDIR=/tmp/matplotlib
USER 1000
WORKDIR /work
ENTRYPOINT ["eb-saliency"]
CMD ["--help"]
