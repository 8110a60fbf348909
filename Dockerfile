# The server as a container, for a CPU or for NVIDIA cards:
#   docker build --target cpu  -t vivavoce:cpu .       torch without CUDA
#   docker build --target cuda -t vivavoce:cuda .      torch with CUDA; run it with --gpus
#   docker build --target sbom-cpu -o . .              writes vivavoce-cpu.cdx.json, what the image's Python holds
# /health and /metrics tell the commit of a build with --build-arg COMMIT="$(git rev-parse HEAD)".
# A build that must be the same for years names the image by digest: --build-arg PYTHON_IMAGE=python@sha256:...
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# ---- what is installed -------------------------------------------------------------------------------------------
# Everything that somebody else wrote, without the project: a new version of ours leaves this layer as it is.
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
# SOURCE_DATE_EPOCH: bytecode is checked by its source's hash, not by a time, so that two builds give the same files.
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore SOURCE_DATE_EPOCH=1767225600
RUN python -m venv --without-pip /opt/vivavoce
COPY constraints.txt pyproject.toml ./
RUN python -c "import tomllib; \
    project = tomllib.load(open('pyproject.toml', 'rb'))['project']; extras = project['optional-dependencies']; \
    lines = project['dependencies'] + extras['engine'] + extras['server'] + extras['otel'] + extras['watermark']; \
    print(*(line for line in lines if not line.startswith('vivavoce-')), sep='\n')" > requirements.txt

FROM build AS third-party-cpu
# A page or a folder that lists wheels of torch for a CPU.
ARG TORCH_CPU_WHEELS=https://download.pytorch.org/whl/cpu/torch/
# torch comes from there or not at all: PyPI's would bring gigabytes of CUDA. Only a GPU uses Triton. 180 MB of torch serve
# those who compile against it or test it; torch_shm_manager is the one program of torch/bin that torch itself starts.
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/vivavoce/bin/python install --no-deps --no-index --find-links "$TORCH_CPU_WHEELS" \
    "$(sed -n 's/^torch==.*/&+cpu/p' constraints.txt)" \
    && sed -i '/^triton\b/d' requirements.txt \
    && pip --python /opt/vivavoce/bin/python install -r requirements.txt \
    && torch="$(echo /opt/vivavoce/lib/python3.*/site-packages/torch)" && rm -r "$torch/include" "$torch/test" \
    && find "$torch/bin" -mindepth 1 ! -name torch_shm_manager -delete

FROM build AS third-party-cuda
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/vivavoce/bin/python install -r requirements.txt

FROM build AS ours
COPY LICENSE README.md hatch_build.py ./
COPY bench bench
COPY conformance conformance
COPY engine engine
COPY eval eval
COPY server server
COPY text text
COPY clients clients
COPY voice voice
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/vivavoce/bin/python install --no-deps --root /ours ./voice .

# ---- what runs -----------------------------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS runtime
LABEL org.opencontainers.image.title="Vivavoce" \
      org.opencontainers.image.description="A streaming speech server for the Qwen3-TTS model family" \
      org.opencontainers.image.licenses="Apache-2.0"
# Another user (docker run --user 12345, OpenShift) is of group 0, and may write into the volumes as well.
RUN useradd --no-log-init --create-home --uid 10001 vivavoce \
    && install --directory --owner=vivavoce --group=root --mode=0775 /voices /models /cache
ENV PATH=/opt/vivavoce/bin:$PATH PYTHONUNBUFFERED=1 \
    VIVAVOCE_HOST=0.0.0.0 VIVAVOCE_PORT=8000 VIVAVOCE_VOICES_DIR=/voices HF_HOME=/models
VOLUME ["/voices", "/models", "/cache"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=180s \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['VIVAVOCE_PORT']}/health\", timeout=2)"]
ENTRYPOINT ["vivavoce"]
CMD ["serve"]

FROM runtime AS runtime-cuda
# Triton builds a small launcher with a C compiler and Python's headers, which the base must bring, when a kernel first
# runs. The results stay in the volume.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && ls "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"
ENV TRITON_CACHE_DIR=/cache/triton TORCHINDUCTOR_CACHE_DIR=/cache/inductor CUDA_CACHE_PATH=/cache/cuda \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM runtime-cuda AS cuda
COPY --from=third-party-cuda /opt/vivavoce /opt/vivavoce
COPY --from=ours /ours/ /
ARG COMMIT=""
ENV VIVAVOCE_COMMIT=$COMMIT
USER 10001:10001

FROM runtime AS cpu
COPY --from=third-party-cpu /opt/vivavoce /opt/vivavoce
COPY --from=ours /ours/ /
ARG COMMIT=""
ENV VIVAVOCE_COMMIT=$COMMIT
USER 10001:10001

# ---- bill of materials: CycloneDX, of the Python packages; `docker build --sbom=true` adds Debian's ------------------
FROM build AS bill
# Its own versions; it is no part of the image.
RUN python -m venv /opt/bill && PIP_CONSTRAINT='' /opt/bill/bin/pip install --no-cache-dir cyclonedx-bom==7.5.0

FROM bill AS bill-cpu
COPY --from=cpu /opt/vivavoce /opt/vivavoce
RUN /opt/bill/bin/cyclonedx-py environment --output-reproducible -o /vivavoce-cpu.cdx.json /opt/vivavoce/bin/python

FROM bill AS bill-cuda
COPY --from=cuda /opt/vivavoce /opt/vivavoce
RUN /opt/bill/bin/cyclonedx-py environment --output-reproducible -o /vivavoce-cuda.cdx.json /opt/vivavoce/bin/python

FROM scratch AS sbom-cpu
COPY --from=bill-cpu /vivavoce-cpu.cdx.json /

FROM scratch AS sbom-cuda
COPY --from=bill-cuda /vivavoce-cuda.cdx.json /

# ---- without --target ----
FROM cpu
