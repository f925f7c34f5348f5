# The engine for other programs, on processors: see docs/install.md.
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++
RUN python -m venv /opt/localdflash
ENV PATH=/opt/localdflash/bin:$PATH
COPY constraints.txt /src/
COPY . /src
RUN pip install --no-cache-dir --constraint /src/constraints.txt /src

FROM python:3.11-slim
COPY --from=build /opt/localdflash /opt/localdflash
RUN useradd --create-home localdflash && install --directory --owner localdflash --mode 700 /data
USER localdflash
ENV PATH=/opt/localdflash/bin:$PATH LOCALDFLASH_HOME=/data
VOLUME /data
EXPOSE 8012
ENTRYPOINT ["localdflash"]
CMD ["serve", "--port", "8012", "--host", "0.0.0.0", "--i-know"]
