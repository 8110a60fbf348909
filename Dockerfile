# The server on a CPU with the voice that ships. Build: docker build -t vivavoce . ; run: docker run -p 8000:8000 vivavoce
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/vivavoce
ENV PATH=/opt/vivavoce/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt ./
RUN pip install --extra-index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' constraints.txt)"
COPY . .
RUN pip install -c constraints.txt '.[server]'

FROM python:3.11-slim-bookworm
RUN useradd --create-home --uid 10001 vivavoce
COPY --from=build /opt/vivavoce /opt/vivavoce
ENV PATH=/opt/vivavoce/bin:$PATH PYTHONUNBUFFERED=1
USER vivavoce
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["vivavoce"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
