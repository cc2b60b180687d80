# The proxy alone: small, no torch, no vLLM, starts in seconds, runs as nobody in particular.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md ./
COPY decision_proxy ./decision_proxy
RUN python -m venv /opt/proxy && /opt/proxy/bin/pip install --no-cache-dir .

FROM python:3.12-slim
LABEL org.opencontainers.image.title="decision-proxy"
COPY --from=build /opt/proxy /opt/proxy
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin proxy
USER 10001
ENV PATH=/opt/proxy/bin:$PATH \
    HF_HOME=/models \
    PYTHONUNBUFFERED=1 \
    DECISION_PROXY_HOST=0.0.0.0 \
    DECISION_PROXY_PORT=8001
EXPOSE 8001
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8001/-/live')"]
ENTRYPOINT ["decision-proxy"]
CMD ["serve"]
