# ajet on CPUs. From the root of the repository:
#   docker build -f docker/cpu.Dockerfile -t ajet:cpu .
#   docker run --rm -v "$PWD:/work" ajet:cpu --conf tutorial/example_math_agent/demo.yaml --backbone debug
FROM python:3.12-slim

# A C compiler, for the kernels that a run on a CPU compiles.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir "uv==0.13.*"
WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in README.md CHANGELOG.md LICENSE ./
COPY ajet ajet
COPY tutorial tutorial
RUN uv pip install --system --no-cache --compile-bytecode --torch-backend cpu \
      '.[train,agentscope,datasets,langgraph,mcp,mlflow]'

# Any user may run it (docker run --user): caches go to /tmp.
ENV HOME=/tmp
USER 1000
WORKDIR /work
ENTRYPOINT ["ajet"]
CMD ["--help"]
