# ajet on NVIDIA GPUs: torch brings CUDA with it, and the host brings the driver
# (nvidia-container-toolkit). From the root of the repository:
#   docker build -f docker/cuda.Dockerfile -t ajet:cuda .
#   docker run --rm --gpus all --shm-size 16g -v "$PWD:/work" ajet:cuda --conf solver.yaml
FROM python:3.12-slim

# Triton and vLLM compile kernels when they start.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir "uv==0.13.*"
ARG TORCH_BACKEND=cu128
WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in README.md CHANGELOG.md LICENSE ./
COPY ajet ajet
COPY tutorial tutorial
RUN uv pip install --system --no-cache --compile-bytecode --torch-backend "$TORCH_BACKEND" \
      '.[train,agentscope,datasets,langgraph,lora,mcp,mlflow,ray]'

# Any user may run it (docker run --user): caches go to /tmp.
ENV HOME=/tmp
USER 1000
WORKDIR /work
ENTRYPOINT ["ajet"]
CMD ["--help"]
